"""Results as text, data and files. Read `verdict` (in words), `variants`, `tables`, `summary` (JSON, CSV), `page`
(what a report says), `run_page`, `markdown` and `html` (how it is written), `timeline`, `files`.

Importing any of these modules imports neither matplotlib nor pyarrow; both load when files are written.
"""
