"""Pages and HTTP service of trinat: results in the browser, segmentations over HTTP.

`start.answer` puts the `guard.Guard` before an application and lets uvicorn serve both. There are
three applications:

- The viewer. `study` lists the content of each scan, `voxels` reads it and `viewer` answers the
  page. `page` has the page itself: plain HTML, CSS and JavaScript, and NiiVue as published.
- The service, with the same page. A scan is received by `service.accept`, which has
  `uploads.receive` check it and put it into the `queue.Queue`. The `engine_thread.EngineThread`
  hands it to the engine of `trinat predict` and returns the outcome to the queue. Clients follow
  its state and download the files of `service.Results`. The page lists the queue by
  `queue_study.QueueStudy`.
- A `site`, with the same page. The modules in `browser` segment, and answer the page's requests
  in place of a server (`browser/site.js`). ONNX Runtime is included as published.
"""
