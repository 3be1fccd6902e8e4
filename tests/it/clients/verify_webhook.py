"""Verifies webhooks with the official library. Reads a JSON object of `secret` and `requests` from standard input, and
prints what each of the requests says, or that it was refused."""

import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

given = json.load(sys.stdin)
said = []
for request in given["requests"]:
    try:
        said.append(Webhook(given["secret"]).verify(request["body"], request["headers"]))
    except WebhookVerificationError as refused:
        said.append(f"refused: {refused}")
json.dump(said, sys.stdout)
