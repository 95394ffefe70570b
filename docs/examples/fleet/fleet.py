"""Starts the fleet on this machine: `python fleet.py [PORT]`. A web process, two workers, and a private server unless
`REDIS_HISTORY_URL` names one. A process that dies is started again, as systemd or a container runtime does it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

port = sys.argv[1] if len(sys.argv) > 1 else "8000"
environment = {"REDIS_HISTORY_URL": "embedded://", "REDIS_HISTORY_NAMESPACE": "fleet"} | os.environ
worker = [sys.executable, "-m", "redis_history.cli", "work", "agent:answer"]
commands = {
    "web": [sys.executable, "-m", "uvicorn", "web:app", "--port", port, "--log-level", "warning"],
    "worker 1": worker,
    "worker 2": worker,
}


def start(name):
    process = subprocess.Popen(commands[name], cwd=Path(__file__).parent, env=environment)
    print(f"{name}: process {process.pid}", flush=True)
    return process


def end(number, frame):
    raise SystemExit


signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
running = {}
try:
    while True:
        for name in commands:
            if name not in running or running[name].poll() is not None:
                running[name] = start(name)
        time.sleep(0.5)
finally:
    for process in running.values():
        process.terminate()
    for process in running.values():
        process.wait()
