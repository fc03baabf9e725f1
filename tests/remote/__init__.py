"""Tests of remote stores."""
