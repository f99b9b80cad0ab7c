//! A pool with a gateway, an account that may use both, and clients whose work has a known result.

use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use sahasra_client::{Argument, Array, Format, Gateway, Options, Program, Session, Target, Tensor, Token};
use sahasra_e2e::{Server, SharedPool, Turn, eventually, is_alive, true_condition};
use serde_json::{Value, json};

/// Timeout for a machine under load.
pub(crate) const WITHIN: Duration = Duration::from_secs(240);
/// Number of elements of a tensor.
pub(crate) const ELEMENTS: usize = 512;

/// PTX that computes `x[i] = x[i] * 1664525 + 1013904223`, `times` times.
const STEP: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 x, .param .u32 n, .param .u32 times)
{
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<4>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra DONE;
    ld.param.u64 %rd0, [x];
    ld.param.u32 %r7, [times];
    mul.wide.u32 %rd1, %r3, 4;
    add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r5, [%rd2];
AGAIN:
    mad.lo.u32 %r5, %r5, 1664525, 1013904223;
    sub.u32 %r7, %r7, 1;
    setp.ne.u32 %p, %r7, 0;
    @%p bra AGAIN;
    st.global.u32 [%rd2], %r5;
DONE:
    ret;
}
";

/// A pool with a gateway, and the token of an account.
pub(crate) struct Fixture {
    pub pool: Turn,
    pub gateway: Server,
    pub token: String,
}

impl Fixture {
    /// Borrows the pool and starts a gateway.
    pub(crate) async fn start(pool: &'static SharedPool) -> Self {
        let pool = pool.borrow().await.expect("Sahasra starts");
        let operator = pool.operator.url();
        let gateway = Server::gateway(&pool.control_plane, &["--operator-url", &operator]).await;
        let gateway = gateway.expect("the gateway starts");
        let token = pool.control_plane.editor("default").await.expect("an account");
        Self { pool, gateway, token }
    }

    /// REST client of the gateway, with the account's token.
    pub(crate) fn rest(&self) -> Gateway {
        self.rest_at(&self.gateway.url())
    }

    /// REST client as [`Fixture::rest`], for a proxy in front of the gateway at `url`.
    pub(crate) fn rest_at(&self, url: &str) -> Gateway {
        Gateway::new(url, Token::text(self.token.clone()), None).expect("a gateway")
    }

    /// Creates a session of 256 MiB for PTX and waits until it is ready.
    pub(crate) async fn session(&self, name: &str, more: Value) -> DynamicObject {
        self.session_in("default", name, more).await
    }

    /// Creates a session as [`Fixture::session`] does, in any namespace.
    pub(crate) async fn session_in(&self, namespace: &str, name: &str, more: Value) -> DynamicObject {
        let mut spec = json!({"class": "cpu", "vram": "256Mi", "engine": "ptx"});
        for (field, value) in more.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        let session = json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession",
            "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        });
        self.pool.control_plane.apply(&session.to_string()).await.expect("applied");
        self.until_in(namespace, name, |session| true_condition(session, "Ready").is_some())
            .await
    }

    /// Waits until `wanted` accepts a session, and returns it.
    pub(crate) async fn until(&self, name: &str, wanted: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        self.until_in("default", name, wanted).await
    }

    /// Waits as [`Fixture::until`] does, in any namespace.
    pub(crate) async fn until_in(&self, namespace: &str, name: &str, wanted: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
        let wanted = |session: Option<&DynamicObject>| session.is_some_and(&wanted);
        let session = self
            .pool
            .control_plane
            .wait_until("GpuSession", namespace, name, WITHIN, wanted)
            .await;
        session.expect("it comes to that").expect("it is there")
    }

    /// Target of a client for a session: the worker itself if `direct`, or else the gateway.
    pub(crate) fn target(&self, session: &DynamicObject, direct: bool) -> Target {
        let name = session.metadata.name.as_deref().expect("a name");
        let gateway = self.rest();
        if direct {
            self.worker_alone(session).explained_by(&gateway, "default", name)
        } else {
            let target = Target::through(&gateway, "default", name).expect("a target");
            target.on(&place(session))
        }
    }

    /// Target of a client that reaches the session's worker only: it does not learn from the session's conditions that the session failed.
    pub(crate) fn worker_alone(&self, session: &DynamicObject) -> Target {
        let name = session.metadata.name.as_deref().expect("a name");
        let token = Token::text(self.token.clone());
        let target = Target::direct(text(session, "endpoint"), token, None, "default", name);
        target.expect("a target").on(&place(session))
    }

    /// Index of the agent that has the session.
    pub(crate) fn agent_of(&self, session: &DynamicObject) -> usize {
        usize::from(text(session, "worker") != "node-0")
    }

    /// Process ids of all session executors of an agent.
    pub(crate) fn executors(&self, agent: usize) -> Vec<u32> {
        let children = self.pool.agents[agent].process.children();
        let executors = children.iter().filter(|child| child.command.contains("executor session"));
        executors.map(|executor| executor.pid).collect()
    }

    /// Waits until an execution of a session runs on the worker.
    pub(crate) async fn is_running(&self, worker: &str) {
        let running = eventually(WITHIN, async || {
            let workers = self.pool.operator.get_json("/workers").await.ok()?;
            let mut rows = workers.as_array()?.iter();
            let active = |row: &Value| row["id"] == worker && row["active_executions"].as_i64() > Some(0);
            rows.any(active).then_some(())
        });
        running.await.expect("it runs");
    }

    /// Deletes a session.
    pub(crate) async fn delete_in(&self, namespace: &str, name: &str) {
        let deleted = self.pool.control_plane.delete("GpuSession", namespace, name).await;
        deleted.expect("deleted");
    }

    /// Deletes these sessions and checks that nothing is left of them: no object, lease, slice, process or tensor.
    pub(crate) async fn leaves_nothing(&mut self, sessions: &[&str], executors: &[u32]) {
        for name in sessions {
            self.delete_in("default", name).await;
        }
        for name in sessions {
            let gone = |session: Option<&DynamicObject>| session.is_none();
            let waited = self.pool.control_plane.wait_until("GpuSession", "default", name, WITHIN, gone);
            waited.await.expect("its finalizer goes");
        }
        self.pool.nothing_held(WITHIN).await.expect("everything is given back");
        let gone = eventually(WITHIN, async || executors.iter().all(|pid| !is_alive(*pid)).then_some(()));
        gone.await.expect("no executor is left");
        assert!((0..self.pool.agents.len()).all(|agent| self.executors(agent).is_empty()));
        let empty = eventually(WITHIN, async || {
            let workers = self.pool.operator.get_json("/workers").await.ok()?;
            let rows = workers.as_array()?;
            rows.iter()
                .all(|row| row["tensor_count"] == 0 && row["stored_tensor_bytes"] == 0)
                .then_some(())
        });
        empty.await.expect("no tensor is left");
    }
}

/// Text field of a status.
pub(crate) fn text<'a>(session: &'a DynamicObject, field: &str) -> &'a str {
    session.data["status"][field].as_str().unwrap_or_default()
}

/// Worker and device of a session.
fn place(session: &DynamicObject) -> String {
    format!("{}/{}", text(session, "worker"), text(session, "device"))
}

/// Awaits an answer with a timeout.
pub(crate) async fn answered<T>(asked: impl Future<Output = T>) -> T {
    tokio::time::timeout(WITHIN, asked).await.expect("it is answered")
}

/// A client with a tensor on which it computes steps, and the expected result.
pub(crate) struct Work {
    pub session: Session,
    step: Program,
    tensor: Tensor,
    expected: Vec<u32>,
}

impl Work {
    /// Connects and uploads the tensor.
    pub(crate) async fn start(target: Target, options: Options) -> Self {
        let session = Session::connect(target, options).await.expect("it connects");
        let step = session.compile("step", Format::Ptx, STEP).expect("sent");
        let expected: Vec<u32> = (0..ELEMENTS as u32).collect();
        let tensor = session.put(bytes(&expected), "u32", &[ELEMENTS as i64]).expect("sent");
        Self {
            session,
            step,
            tensor,
            expected,
        }
    }

    /// Starts a step, which depends on the previous one.
    pub(crate) fn step(&mut self) {
        self.launch(1);
        for element in &mut self.expected {
            *element = element.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        }
    }

    /// Starts a step that takes minutes and whose result is not awaited.
    pub(crate) fn long_step(&self) {
        self.launch(u32::MAX);
    }

    fn launch(&self, times: u32) {
        let count = (ELEMENTS as u32).to_le_bytes();
        let times = times.to_le_bytes();
        let arguments = [Argument::Tensor(&self.tensor), Argument::Scalar(&count), Argument::Scalar(&times)];
        let grid = [(ELEMENTS as u32).div_ceil(256), 1, 1];
        let launched = self.session.launch(&self.step, "step", grid, [256, 1, 1], 0, &arguments);
        launched.expect("sent");
    }

    /// Downloads the tensor.
    async fn there(&self) -> Array {
        answered(self.tensor.download()).await.expect("it comes back")
    }

    /// Downloads the tensor, and uploads its bytes as a new tensor that replaces it: nothing may be lost on the way.
    pub(crate) async fn around(&mut self) {
        let array = self.there().await;
        assert!(array.data == bytes(&self.expected), "the loop went wrong");
        self.tensor = self.session.put(array.data, "u32", &[ELEMENTS as i64]).expect("sent");
    }

    /// Checks that the tensor is exactly the expected result.
    pub(crate) async fn is_right(&self) {
        assert!(self.there().await.data == bytes(&self.expected), "something was lost or repeated");
        answered(self.session.synchronise()).await.expect("nothing failed");
    }

    /// Waits for the error with which the session ends; returns the error and the time since `since`.
    pub(crate) async fn ends(&self, since: Instant) -> (sahasra_client::Error, Duration) {
        let error = answered(self.session.synchronise()).await.expect_err("nothing answers any more");
        (error, since.elapsed())
    }
}

fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}
