//! Faults of a run, and the calls that start and end them.

use std::time::Duration;

use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{sleep, sleep_until},
};

use crate::{
    parts::Order,
    plan::{Fault, HEALED, Kind, Plan},
    users::Users,
    world::{Node, USUAL_DELAY, locked, pair},
};

impl Users {
    /// Starts a fault at its time and ends it after its duration. Some faults are actions of users.
    pub async fn fault(
        self,
        fault: Fault,
        plan: Plan,
        operators: Vec<mpsc::UnboundedSender<Order>>,
        agents: Vec<mpsc::UnboundedSender<Order>>,
    ) {
        let world = &self.world;
        sleep_until(world.instant(fault.at)).await;
        world.note(format_args!("fault: {fault:?}"));
        let over = world.instant((fault.at + fault.lasts).min(HEALED - 1_000));
        match fault.kind {
            Kind::End(Node::Operator(index), order) => drop(operators[index].send(order)),
            Kind::End(Node::Agent(index), order) => drop(agents[index].send(order)),
            Kind::End(Node::Api, _) => {}
            Kind::Partition(one, other) => {
                *world.conditions().partitions.entry(pair(one, other)).or_default() += 1;
                sleep_until(over).await;
                let mut conditions = world.conditions();
                if let Some(reasons) = conditions.partitions.get_mut(&pair(one, other)) {
                    *reasons -= 1;
                }
                conditions.partitions.retain(|_, reasons| *reasons > 0);
            }
            Kind::ApiDown => {
                world.conditions().api_down += 1;
                world.control_plane.close_watches();
                sleep_until(over).await;
                world.conditions().api_down -= 1;
            }
            Kind::ApiErrors(share) => {
                world.conditions().api_errors = share;
                sleep_until(over).await;
                world.conditions().api_errors = 0;
            }
            Kind::ApiHangs(share) => {
                world.conditions().api_hangs = share;
                sleep_until(over).await;
                world.conditions().api_hangs = 0;
            }
            Kind::Compact => world.control_plane.compact(),
            Kind::CloseWatches => world.control_plane.close_watches(),
            Kind::ExpireWatches => world.control_plane.expire_watches(),
            Kind::WatchLag(lag) => {
                world.conditions().watch_lag = lag;
                sleep_until(over).await;
                world.conditions().watch_lag = 0;
            }
            Kind::Delay(delay) => {
                world.conditions().delay = delay;
                sleep_until(over).await;
                world.conditions().delay = USUAL_DELAY;
            }
            Kind::Loss(share) => {
                world.conditions().loss = share;
                sleep_until(over).await;
                world.conditions().loss = 0;
            }
            Kind::Repeats(share) => {
                world.conditions().repeats = share;
                sleep_until(over).await;
                world.conditions().repeats = 0;
            }
            Kind::StoreDown => {
                world.conditions().store.down += 1;
                sleep_until(over).await;
                world.conditions().store.down -= 1;
            }
            Kind::StoreRefuses => {
                world.conditions().store.refuses += 1;
                sleep_until(over).await;
                world.conditions().store.refuses -= 1;
            }
            Kind::StoreErrors(share) => {
                world.conditions().store.errors = share;
                sleep_until(over).await;
                world.conditions().store.errors = 0;
            }
            Kind::StoreLosses(share) => {
                world.conditions().store.losses = share;
                sleep_until(over).await;
                world.conditions().store.losses = 0;
            }
            Kind::StoreHangs(share) => {
                world.conditions().store.hangs = share;
                sleep_until(over).await;
                world.conditions().store.hangs = 0;
            }
            Kind::StoreDelay(delay) => {
                world.conditions().store.delay = delay;
                sleep_until(over).await;
                world.conditions().store.delay = 0;
            }
            Kind::Break(index) => {
                if let Some(live) = world.agent(index) {
                    std::mem::take(&mut *locked(&live.connections)).cancel();
                }
            }
            Kind::Slow(index, factor) => {
                world.conditions().slow.insert(index, factor);
                sleep_until(over).await;
                world.conditions().slow.remove(&index);
            }
            Kind::Meddle(index) => {
                for times in 0..10 {
                    let patch = json!({"metadata": {"annotations": {"meddled": times.to_string()}}});
                    self.patch(index, patch).await;
                    sleep(Duration::from_millis(1 + world.below(300))).await;
                }
            }
            Kind::Suspend(index) => {
                self.patch(index, json!({"spec": {"suspend": true}})).await;
                sleep_until(over).await;
                self.patch(index, json!({"spec": {"suspend": false}})).await;
            }
            Kind::Priority(index, priority) => self.patch(index, json!({"spec": {"priority": priority}})).await,
            Kind::Resize(index, most) => {
                let most = most.max(plan.bursts[index].slices.0);
                self.patch(index, json!({"spec": {"slices": {"max": most}}})).await;
            }
        }
    }
}
