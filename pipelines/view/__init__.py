"""Viewer of results in the browser, and the parts that all HTTP servers of trinat share.

`start.answer` puts the `guard.Guard` before an application and lets uvicorn serve both. In the
viewer, `viewed` lists the scans, `voxels` reads their files and `viewer` answers the page. `page`
has the page itself: plain HTML, CSS and JavaScript, and NiiVue as published. The service
(`pipelines/serve`) and the page that segments in the browser (`pipelines/site`) use the same page.
"""
