import json, os, sys, time, urllib.error, urllib.request

api = __BASE__ + "/api/v1/images"
key = __KEY__

def call(path, body=None):
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(api + path, body and json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["data"], float(answer.headers.get("X-Poll-After", 0))
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        sys.exit(json.loads(text)["error"]["message"] if text.startswith('{"error"') else str(error))
    except urllib.error.URLError as error:
        sys.exit(f"No answer from {api}: {error.reason}")

task, wait = call("/generate", __REQUEST__)

# Poll while the task is processing, when the header X-Poll-After says so.
while task["status"] == "processing":
    time.sleep(wait)
    task, wait = call("/task/" + task["task_id"])
if task["error"]:
    sys.exit(task["error"])

for image in task["images"]:
    name = image["url"].split("?")[0].rsplit("/", 1)[1]
    urllib.request.urlretrieve(image["url"], name)
    print("saved", name)
