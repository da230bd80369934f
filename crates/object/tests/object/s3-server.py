"""An S3 server in memory (moto) for the tests beside this file.

It makes the bucket "bucket", prints its port, and ends when its input does.
"""

import logging
import sys

import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
client = boto3.client(
    "s3",
    endpoint_url=f"http://{host}:{port}",
    region_name="us-east-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
)
client.create_bucket(Bucket="bucket")
print(port, flush=True)
sys.stdin.read()
server.stop()
