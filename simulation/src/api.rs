//! Simulated connection to the API server: requests and responses are delayed and lost, the server is down or answers with errors, and
//! watches lag behind and break. A request that reached the server is carried out, whatever happens to its sender.

use std::{io, pin::Pin, sync::Arc, task, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};
use tower_service::Service;

use crate::{
    plan::SYSTEM,
    store,
    world::{Node, World},
};

/// Time after which a request without a response fails.
const GIVEN_UP: Duration = Duration::from_secs(10);

type Parts = StreamBody<BoxStream<'static, Result<Frame<Bytes>, io::Error>>>;

/// Connection of one node to the API server.
#[derive(Clone, Debug)]
pub struct Api {
    world: Arc<World>,
    from: Node,
}

impl Api {
    /// Returns a client for the node `from`.
    pub fn client(world: &Arc<World>, from: Node) -> kube::Client {
        let world = Arc::clone(world);
        kube::Client::new(Self { world, from }, SYSTEM)
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::other(what)
}

impl Service<Request<Body>> for Api {
    type Response = Response<Parts>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), io::Error>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (answer, answered) = oneshot::channel();
        let api = self.clone();
        tokio::spawn(async move {
            let outcome = api.carry(request).await;
            let _ = answer.send(outcome);
        });
        Box::pin(async move { answered.await.unwrap_or_else(|_| Err(broken("the connection broke"))) })
    }
}

impl Api {
    /// Waits for the delay of one message. Returns an error if the message does not get through.
    async fn way(&self) -> Result<(), io::Error> {
        sleep(self.world.delay()).await;
        let (loss, connected) = {
            let loss = self.world.conditions().loss;
            (loss, self.world.connected(self.from, Node::Api))
        };
        if !connected {
            let down = self.world.conditions().api_down > 0;
            // A server that is down rejects connections at once; an unreachable one does not respond at all.
            sleep(if down { Duration::from_millis(1) } else { GIVEN_UP }).await;
            return Err(broken("no connection"));
        }
        if self.world.happens(loss) {
            return Err(broken("the connection broke"));
        }
        Ok(())
    }

    async fn carry(&self, request: Request<Body>) -> Result<Response<Parts>, io::Error> {
        self.way().await?;
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        let watches = head.uri.query().is_some_and(|query| query.contains("watch=true"));
        if self.world.happens(self.world.conditions().api_errors) {
            self.world.note(format_args!("{} {method} {path}: 500", self.from));
            return Ok(failure());
        }
        let request = Request::from_parts(head, Full::new(body.clone()));
        let Ok(response) = self.world.control_plane.service().call(request).await;
        let status = response.status();
        self.world.note(format_args!(
            "{} {method} {path} {} bytes: {}",
            self.from,
            body.len(),
            status.as_u16()
        ));
        if status.is_success() {
            self.world.writes.lock().add(self.world.elapsed(), self.from, &method, &path, &body);
            store::check_checkpoint(&self.world, &path, &body);
        }
        let (head, body) = response.into_parts();
        if self.world.happens(self.world.conditions().api_hangs) {
            self.world.note(format_args!("{} {method} {path}: no answer", self.from));
            sleep(GIVEN_UP).await;
            return Err(broken("timed out"));
        }
        let body = if watches && status.is_success() {
            self.follow(body)
        } else {
            self.way().await?;
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            stream::iter([Ok(Frame::data(bytes))]).boxed()
        };
        Ok(Response::from_parts(head, StreamBody::new(body)))
    }

    /// Returns the events of a watch, each after its delay. The watch breaks with the connection.
    fn follow(&self, mut body: sahasra_local::ResponseBody) -> BoxStream<'static, Result<Frame<Bytes>, io::Error>> {
        let (events, followed) = mpsc::unbounded_channel();
        let (world, from) = (Arc::clone(&self.world), self.from);
        tokio::spawn(async move {
            while let Some(Ok(event)) = body.frame().await {
                let lag = Duration::from_millis(world.conditions().watch_lag);
                if events.send((Instant::now() + world.delay() + lag, event)).is_err() {
                    return;
                }
            }
        });
        let world = Arc::clone(&self.world);
        stream::unfold(Some((followed, Instant::now())), move |state| {
            let world = Arc::clone(&world);
            async move {
                let (mut followed, last) = state?;
                let next = async {
                    let (due, event) = followed.recv().await?;
                    // Events keep their order.
                    let due = due.max(last);
                    sleep_until(due).await;
                    Some((due, event))
                };
                let lost = async {
                    // Polled at an interval: on a connection without traffic a break is noticed late.
                    loop {
                        sleep(Duration::from_secs(2)).await;
                        if !world.connected(from, Node::Api) {
                            return;
                        }
                    }
                };
                tokio::select! {
                    biased;
                    next = next => {
                        let (due, event) = next?;
                        if world.connected(from, Node::Api) {
                            Some((Ok(event), Some((followed, due))))
                        } else {
                            Some((Err(broken("the watch broke")), None))
                        }
                    }
                    () = lost => Some((Err(broken("the watch broke")), None)),
                }
            }
        })
        .boxed()
    }
}

fn failure() -> Response<Parts> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "etcdserver: request timed out", "reason": "InternalError", "code": 500,
    });
    let body = stream::iter([Ok(Frame::data(Bytes::from(status.to_string())))]).boxed();
    let mut response = Response::new(StreamBody::new(body));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}
