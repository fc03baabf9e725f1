"""The providers of device functions."""
