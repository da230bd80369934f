"""An S3 server in memory (moto) for the tests beside this file and others.

It makes the bucket "bucket", prints its port (any, or the one that is its
argument), and ends when its input does. With --checked it also makes a user, and
prints key and secret behind the port; all other requests are refused.
"""

import json
import logging
import os
import sys

arguments = [argument for argument in sys.argv[1:] if argument != "--checked"]
is_checked = len(arguments) < len(sys.argv) - 1
# Number of requests before authentication is enforced, for those below; moto reads it when it
# is loaded.
if is_checked:
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

logging.getLogger("werkzeug").setLevel(logging.ERROR)
port = int(arguments[0]) if arguments else 0
server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
server.start()
host, port = server.get_host_and_port()


def client(service):
    return boto3.client(
        service,
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )


client("s3").create_bucket(Bucket="bucket")
if is_checked:
    iam = client("iam")
    iam.create_user(UserName="user")
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [everything]}
    iam.put_user_policy(UserName="user", PolicyName="policy", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="user")["AccessKey"]
    print(port, key["AccessKeyId"], key["SecretAccessKey"], flush=True)
else:
    print(port, flush=True)
sys.stdin.read()
server.stop()
