import jax
import jax.numpy as jnp
from sahasra import RemoteJaxSession, SahasraClient


@jax.jit
def fit(samples, targets):
    """Returns the weights of a linear model after 200 steps of gradient descent."""

    def loss(weights):
        return jnp.mean((samples @ weights - targets) ** 2)

    def step(_, weights):
        return weights - 0.1 * jax.grad(loss)(weights)

    return jax.lax.fori_loop(0, 200, step, jnp.zeros(samples.shape[1]))


samples = jax.random.normal(jax.random.key(7), (4096, 3))
targets = samples @ jnp.array([2.0, -1.0, 0.5])

client = SahasraClient("http://127.0.0.1:8000")
with RemoteJaxSession.create(client, gpu_class="g5") as session:
    estimate = session.estimate_jitted(fit, sample_inputs=(samples, targets))
    print(f"feasible: {estimate.feasible}, arguments: {estimate.argument_bytes} bytes")  # feasible: True, arguments: 65536 bytes
    execution = session.execute_jitted(fit, sample_inputs=(samples, targets))
    print(f"{execution.runtime_mode}: {execution.output.numpy().round(3)}")  # jax_export_local: [ 2.  -1.   0.5]
