"""Runs on two machines: network namespaces with files of their own, and a real S3 server between them."""
