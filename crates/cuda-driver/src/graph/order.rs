//! Orders of the nodes of a graph.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::boundary::Handle;

use super::Nodes;

impl Nodes {
    /// The nodes in an order in which each follows those before it; an error is a node of a cycle. Nodes of one class are next to each other
    /// where that is possible.
    pub(crate) fn order(&self, class: impl Fn(Handle) -> bool) -> Result<Vec<Handle>, Handle> {
        let mut missing: BTreeMap<Handle, usize> = self.iter().map(|(handle, node)| (handle, node.dependencies.len())).collect();
        let mut ready = [BTreeSet::new(), BTreeSet::new()];
        let place = |handle| usize::from(class(handle));
        for (handle, _) in missing.iter().filter(|(_, missing)| **missing == 0) {
            ready[place(*handle)].insert(*handle);
        }
        let mut order = Vec::with_capacity(missing.len());
        let mut last = 1;
        while let Some(next) = ready[last].pop_first().or_else(|| ready[1 - last].pop_first()) {
            last = place(next);
            missing.remove(&next);
            order.push(next);
            for behind in self.get(next).map_or(&[][..], |node| &node.dependents) {
                let Some(count) = missing.get_mut(behind) else { continue };
                *count -= 1;
                if *count == 0 {
                    ready[place(*behind)].insert(*behind);
                }
            }
        }
        match missing.first_key_value() {
            Some((in_cycle, _)) => Err(*in_cycle),
            None => Ok(order),
        }
    }

    /// These nodes and all before them.
    pub(crate) fn with_all_before(&self, nodes: &[Handle]) -> HashSet<Handle> {
        let mut found = HashSet::new();
        let mut open = nodes.to_vec();
        while let Some(handle) = open.pop() {
            if found.insert(handle)
                && let Ok(node) = self.get(handle)
            {
                open.extend(&node.dependencies);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::Work;
    use super::*;

    #[test]
    fn nodes_follow_those_before_them_and_classes_stay_together() {
        let mut nodes = Nodes::default();
        let mut add = |before: &[Handle]| nodes.insert(Work::Empty, before).unwrap();
        let first = add(&[]);
        let other = add(&[]);
        let behind = add(&[first]);
        let last = add(&[behind, other]);
        assert_eq!(nodes.order(|_| true), Ok(vec![first, other, behind, last]));
        assert_eq!(nodes.order(|node| node != other), Ok(vec![first, behind, other, last]));
        assert_eq!(nodes.with_all_before(&[behind]), HashSet::from([first, behind]));
        nodes.connect(&[(last, behind)]).unwrap();
        assert_eq!(nodes.order(|_| true), Err(behind));
        assert_eq!(nodes.with_all_before(&[last]).len(), 4);
    }
}
