"""The job view: results looked at and judged in the browser.

`study` knows what there is of each scan, `voxels` reads it, `app` answers the page, and `page` has
the page itself: plain HTML, CSS and JavaScript, and NiiVue as it was published.
"""
