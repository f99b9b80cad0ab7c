//! Faults of a run, and the calls that start and end them.

use std::time::Duration;

use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    plan::{Fault, HEALED, Kind, Plan},
    processes::Order,
    users::Users,
    world::{Conditions, Node, pair},
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
            Kind::ApiErrors(share) => self.condition(over, |conditions| &mut conditions.api_errors, share).await,
            Kind::ApiHangs(share) => self.condition(over, |conditions| &mut conditions.api_hangs, share).await,
            Kind::Compact => world.control_plane.compact(),
            Kind::CloseWatches => world.control_plane.close_watches(),
            Kind::ExpireWatches => world.control_plane.expire_watches(),
            Kind::WatchLag(lag) => self.condition(over, |conditions| &mut conditions.watch_lag, lag).await,
            Kind::Delay(delay) => self.condition(over, |conditions| &mut conditions.delay, delay).await,
            Kind::Loss(share) => self.condition(over, |conditions| &mut conditions.loss, share).await,
            Kind::Repeats(share) => self.condition(over, |conditions| &mut conditions.repeats, share).await,
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
            Kind::StoreErrors(share) => self.condition(over, |conditions| &mut conditions.store.errors, share).await,
            Kind::StoreLosses(share) => self.condition(over, |conditions| &mut conditions.store.losses, share).await,
            Kind::StoreHangs(share) => self.condition(over, |conditions| &mut conditions.store.hangs, share).await,
            Kind::StoreDelay(delay) => self.condition(over, |conditions| &mut conditions.store.delay, delay).await,
            Kind::Break(index) => {
                if let Some(live) = world.agent(index) {
                    std::mem::take(&mut *live.connections.lock()).cancel();
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

    /// Sets a condition, and restores its value without faults at `over`.
    async fn condition(&self, over: Instant, field: fn(&mut Conditions) -> &mut u64, value: u64) {
        *field(&mut self.world.conditions()) = value;
        sleep_until(over).await;
        *field(&mut self.world.conditions()) = *field(&mut Conditions::default());
    }
}
