"""What the pages and services of trinat have in common: who may ask, and how they start.

`start.answer` puts the `guard.Guard` before an application and lets uvicorn serve both.
"""
