"""Segmentations over HTTP: a queue on disk, the batch engine behind it, an interface before it.

A scan comes in by `routes.accept`, which has `uploads.receive` check it and put it into the
`queue.Queue`. The thread of `worker.Worker` hands it to the engine of `trinat predict` and gives
the outcome back to the queue. Clients follow its state and take the files of `results.Results`.
`app.make_app` puts these together, with the page of the viewer over `page.QueueStudy`.
"""
