"""The application that Celery's workers and its client import."""

import os

from celery import Celery

url = os.environ["PEER_REDIS"]
app = Celery("peer", broker=url, backend=url)
app.conf.update(
    # As its guide on optimising advises for many short tasks.
    worker_prefetch_multiplier=128,
    task_acks_late=os.environ["PEER_ACKS_LATE"] == "yes",
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task
def task(payload):
    return payload
