"""1000 no-op tasks on another system, on this machine: run by bench/suites/peers.py in an environment of its own.

    noop.py SYSTEM TASKS RUNS      prints {"seconds": [...]}, one value per run, after one warm-up run

Starting the system is not measured. A run ends when the client holds every result; the results are then checked. Every system
has two workers. `_batched` means one call for every 64 tasks.
"""

import json
import sys
import time

WORKERS = 2
BATCH = 64


def repeated(once, tasks, runs):
    """Returns the seconds of each run of `once`, which returns the results: the indices, in order. Raises RuntimeError for other results."""
    seconds = []
    for run in range(runs + 1):
        started = time.perf_counter()
        results = once()
        if run > 0:
            seconds.append(time.perf_counter() - started)
        if list(results) != list(range(tasks)):
            raise RuntimeError("the results are wrong")
    return seconds


def batches(tasks):
    return [range(start, min(start + BATCH, tasks)) for start in range(0, tasks, BATCH)]


def joined(parts):
    return [result for part in parts for result in part]


def start_ray():
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1")
    return ray


def ray_tasks(tasks, runs):
    """One remote function call per task; the worker processes stay warm."""
    ray = start_ray()
    noop = ray.remote(lambda index: index)
    seconds = repeated(lambda: ray.get([noop.remote(i) for i in range(tasks)]), tasks, runs)
    ray.shutdown()
    return seconds


def ray_tasks_batched(tasks, runs):
    """One remote function call for every 64 tasks."""
    ray = start_ray()
    noops = ray.remote(lambda indices: [index for index in indices])
    seconds = repeated(lambda: joined(ray.get([noops.remote(batch) for batch in batches(tasks)])), tasks, runs)
    ray.shutdown()
    return seconds


def ray_workers(ray):
    """Two actors, created and warmed up."""

    @ray.remote
    class Worker:
        def noop(self, index):
            return index

        def noops(self, indices):
            return [index for index in indices]

    workers = [Worker.remote() for _ in range(WORKERS)]
    ray.get([w.noop.remote(0) for w in workers])
    return workers


def ray_actors(tasks, runs):
    """Two actors created beforehand; one method call per task."""
    ray = start_ray()
    workers = ray_workers(ray)
    seconds = repeated(lambda: ray.get([workers[i % WORKERS].noop.remote(i) for i in range(tasks)]), tasks, runs)
    ray.shutdown()
    return seconds


def ray_actors_batched(tasks, runs):
    """Two actors created beforehand; one method call for every 64 tasks."""
    ray = start_ray()
    workers = ray_workers(ray)

    def once():
        return joined(ray.get([workers[i % WORKERS].noops.remote(batch) for i, batch in enumerate(batches(tasks))]))

    seconds = repeated(once, tasks, runs)
    ray.shutdown()
    return seconds


def with_dask(use):
    """Runs `use` with a client of Dask's distributed scheduler: two worker processes with one thread each."""
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster, Client(cluster) as client:
        return use(client)


def dask(tasks, runs):
    """Futures created by map, impure so that no result is cached."""
    return with_dask(lambda client: repeated(lambda: client.gather(client.map(int, range(tasks), pure=False)), tasks, runs))


def dask_batched(tasks, runs):
    """Futures created by map, one for every 64 tasks."""
    return with_dask(lambda client: repeated(lambda: joined(client.gather(client.map(list, batches(tasks), pure=False))), tasks, runs))


def dask_partitions(tasks, runs):
    """A bag with partitions of 64 indices, whose results map_partitions computes."""
    from dask import bag

    def once(client):
        indices = bag.from_sequence(range(tasks), partition_size=BATCH)
        return indices.map_partitions(lambda part: [index for index in part]).compute(scheduler=client)

    return with_dask(lambda client: repeated(lambda: once(client), tasks, runs))


SYSTEMS = {
    function.__name__: function
    for function in (ray_tasks, ray_tasks_batched, ray_actors, ray_actors_batched, dask, dask_batched, dask_partitions)
}

if __name__ == "__main__":
    name, count, runs = sys.argv[1:]
    seconds = SYSTEMS[name](int(count), int(runs))
    print("\n" + json.dumps({"seconds": seconds}))
