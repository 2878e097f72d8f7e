# An agent that calls a model CALLS times, and keeps what each call took, in seconds.
import http.client, json, os, time, urllib.parse

url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
server = http.client.HTTPConnection(url.hostname, url.port)
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
talk = [{"role": "user", "content": "Count to one."}]
times = []
for _ in range(int(os.environ["CALLS"])):
    body = json.dumps({"model": "any", "messages": talk})
    since = time.perf_counter()
    server.request("POST", url.path + "/chat/completions", body.encode(), headers)
    answer = server.getresponse().read()
    times.append(time.perf_counter() - since)
    message = json.loads(answer)["choices"][0]["message"]
    talk += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Go on."}]
# The first call opens the connection.
json.dump(sorted(times[1:]), open("times.json", "w"))
