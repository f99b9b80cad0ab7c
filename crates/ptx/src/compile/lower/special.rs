//! Special registers (PTX ISA §10).

use super::{At, Lowering};
use crate::compile::ir::{Action, LaneMask, Origin, RegisterId, Special, Width};
use sahasra_ptx_syntax::error::LoadError;

/// Special registers whose value is up to the driver or to hardware that this engine does not have. They read as zero.
fn reads_as_zero(name: &str) -> bool {
    let numbered = |prefix: &str, count: u32| {
        let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| number < count)
    };
    let counter = name.strip_suffix("_64").unwrap_or(name);
    numbered("%envreg", 32)
        || counter
            .strip_prefix("%pm")
            .is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'7']))
        || matches!(name, "%smid" | "%gridid" | "%current_graph_exec" | "%cluster_ctarank")
        || name.starts_with("%reserved_smem_offset_")
}

impl<'a> Lowering<'a> {
    /// Returns the special register of this name, or `None` if the name is not that of a special register.
    pub(super) fn special(
        &mut self,
        at: At<'a, '_>,
        name: &str,
        component: Option<&str>,
        width: Width,
    ) -> Result<Option<RegisterId>, LoadError> {
        let axis = match component {
            None | Some("x" | "r") => 0,
            Some("y" | "g") => 1,
            Some("z" | "b") => 2,
            Some("w" | "a") => 3,
            Some(_) => return Ok(None),
        };
        let special = match (name, component) {
            ("%tid" | "%ntid" | "%ctaid" | "%nctaid", Some("w" | "a")) => Special::Zero,
            ("%tid", Some(_)) => Special::Thread(axis),
            ("%ntid", Some(_)) => Special::BlockExtent(axis),
            ("%ctaid", Some(_)) => Special::Block(axis),
            ("%nctaid", Some(_)) => Special::GridExtent(axis),
            ("%laneid", None) => Special::Lane,
            ("%warpid", None) => Special::Warp,
            ("%nwarpid", None) => Special::WarpCount,
            // Every block is a cluster of its own (§10.20-27).
            ("%clusterid" | "%nclusterid" | "%cluster_ctaid" | "%cluster_nctaid", Some("w" | "a")) => Special::Zero,
            ("%clusterid", Some(_)) => Special::Block(axis),
            ("%nclusterid", Some(_)) => Special::GridExtent(axis),
            ("%cluster_ctaid", Some(_)) => Special::Zero,
            ("%cluster_nctaid", Some(_)) | ("%cluster_nctarank", None) => return Ok(Some(self.constant(width, 1))),
            ("%is_explicit_cluster", None) if width == Width::Predicate => {
                return Ok(Some(self.constant(width, u64::from(self.has_cluster))));
            }
            ("%envreg1", None) => Special::GridWorkspace { high: true },
            ("%envreg2", None) => Special::GridWorkspace { high: false },
            ("%nsmid", None) => return Ok(Some(self.constant(width, 1))),
            ("WARP_SZ", None) => return Ok(Some(self.constant(width, 32))),
            ("%lanemask_eq", None) => Special::LaneMask(LaneMask::Equal),
            ("%lanemask_lt", None) => Special::LaneMask(LaneMask::Less),
            ("%lanemask_le", None) => Special::LaneMask(LaneMask::LessOrEqual),
            ("%lanemask_gt", None) => Special::LaneMask(LaneMask::Greater),
            ("%lanemask_ge", None) => Special::LaneMask(LaneMask::GreaterOrEqual),
            ("%dynamic_smem_size", None) => Special::DynamicSharedBytes,
            ("%total_smem_size" | "%aggr_smem_size", None) => Special::TotalSharedBytes,
            ("%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo" | "%globaltimer_hi", None) => {
                let target = self.new_register(width);
                let guard = self.guard.take();
                self.emit(Action::Clock, vec![target], vec![]);
                self.guard = guard;
                return Ok(Some(target));
            }
            (name, None) if reads_as_zero(name) => Special::Zero,
            _ => return Ok(None),
        };
        if !matches!(width, Width::W16 | Width::W32 | Width::W64) {
            return Err(at.invalid("a special register is no predicate"));
        }
        Ok(Some(self.fixed(width, Origin::Special(special))))
    }
}
