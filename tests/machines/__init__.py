"""Runs on two machines: network namespaces with separate files, and a real S3 server between them."""
