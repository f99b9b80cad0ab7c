import jax, jax.numpy as jnp
from sahasra import RemoteJaxSession, SahasraClient

client = SahasraClient("http://127.0.0.1:8000")
session = RemoteJaxSession.create(client, gpu_class="g5")

@jax.jit
def train_step(x):
    return jnp.tanh(x @ x)

x = jnp.ones((1024, 1024), dtype=jnp.float32)
estimate = session.estimate_jitted(train_step, sample_inputs=(x,))
execution = session.execute_jitted(train_step, sample_inputs=(x,))
print(estimate.feasible, execution.runtime_mode, len(execution.output_tensors))   # True jax_export_local 1
