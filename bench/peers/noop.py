"""1000 no-op tasks on another system, on this machine: run by bench/suites/peers.py in its own environment.

    noop.py SYSTEM TASKS RUNS      prints {"seconds": [...]}, a figure a run, after one run as warm-up

Starting the system is not counted. The client waits for every result. Every system gets two workers.
"""

import json
import sys
import time

WORKERS = 2


def repeated(once, runs):
    once()
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - started)
    return seconds


def ray_tasks(tasks, runs):
    """One remote function call a task; its worker processes stay warm."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1")
    noop = ray.remote(lambda index: index)
    seconds = repeated(lambda: ray.get([noop.remote(i) for i in range(tasks)]), runs)
    ray.shutdown()
    return seconds


def ray_actors(tasks, runs):
    """Two actors made beforehand; a method call a task."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1")

    @ray.remote
    class Worker:
        def noop(self, index):
            return index

    workers = [Worker.remote() for _ in range(WORKERS)]
    ray.get([w.noop.remote(0) for w in workers])
    seconds = repeated(lambda: ray.get([workers[i % WORKERS].noop.remote(i) for i in range(tasks)]), runs)
    ray.shutdown()
    return seconds


def dask(tasks, runs):
    """distributed: two worker processes of one thread; futures made by map, impure so that none is cached."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster, Client(cluster) as client:
        return repeated(lambda: client.gather(client.map(int, range(tasks), pure=False)), runs)


SYSTEMS = {"ray_tasks": ray_tasks, "ray_actors": ray_actors, "dask": dask}

if __name__ == "__main__":
    name, count, runs = sys.argv[1:]
    figures = SYSTEMS[name](int(count), int(runs))
    print("\n" + json.dumps({"seconds": figures}))
