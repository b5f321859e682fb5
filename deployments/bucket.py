"""``python -m deployments.bucket NAME``: make a bucket where it is missing, in the store that AWS_* names."""

import sys

import fsspec

if __name__ == "__main__":
    fsspec.filesystem("s3").makedirs(sys.argv[1], exist_ok=True)
