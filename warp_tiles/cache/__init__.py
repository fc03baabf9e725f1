"""Content-addressed cache of compiled functions (raw LTO-IR), linked modules and precompiled headers.

A key is a list of labelled inputs. A payload is stored under its SHA-256. The cache never fails a build: if its
folder cannot be used, only the caching is lost. It does refuse a folder that others can write. See ``docs/cache.md``.
"""
