"""``python -m deployments.bucket NAME``: make a bucket in the S3-compatible store that AWS_* names, where it is missing."""

import sys

import fsspec

if __name__ == "__main__":
    fsspec.filesystem("s3").makedirs(sys.argv[1], exist_ok=True)
