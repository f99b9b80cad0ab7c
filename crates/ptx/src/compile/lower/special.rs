//! Special registers (PTX ISA §10).

use super::{At, Lowering};
use crate::compile::ir::{Action, LaneMask, Origin, RegisterId, Special, Width};
use sahasra_ptx_syntax::error::LoadError;

/// Special registers of the ISA that this engine does not provide.
const UNSUPPORTED_SPECIALS: [&str; 8] = [
    "%pm",
    "%envreg",
    "%cluster",
    "%nclusterid",
    "%is_explicit_cluster",
    "%reserved_smem",
    "%aggr_smem",
    "%current_graph",
];

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
            Some("x") => 0,
            Some("y") => 1,
            Some("z") => 2,
            Some("w") => 3,
            _ => 0,
        };
        let special = match (name, component) {
            ("%tid" | "%ntid" | "%ctaid" | "%nctaid", Some("w")) => Special::Zero,
            ("%tid", Some(_)) => Special::Thread(axis),
            ("%ntid", Some(_)) => Special::BlockExtent(axis),
            ("%ctaid", Some(_)) => Special::Block(axis),
            ("%nctaid", Some(_)) => Special::GridExtent(axis),
            ("%laneid", None) => Special::Lane,
            ("%warpid", None) => Special::Warp,
            ("%nwarpid", None) => Special::WarpCount,
            ("%smid" | "%gridid" | "%clusterid", _) | ("%envreg0", None) => Special::Zero,
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
            ("%total_smem_size", None) => Special::TotalSharedBytes,
            ("%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo" | "%globaltimer_hi", None) => {
                let target = self.new_register(width);
                let guard = self.guard.take();
                self.emit(Action::Clock, vec![target], vec![]);
                self.guard = guard;
                return Ok(Some(target));
            }
            _ if UNSUPPORTED_SPECIALS.iter().any(|known| name.starts_with(known)) => {
                return Err(at.unsupported(format!("special register {name}")));
            }
            _ => return Ok(None),
        };
        if !matches!(width, Width::W16 | Width::W32 | Width::W64) {
            return Err(at.invalid("a special register is no predicate"));
        }
        Ok(Some(self.fixed(width, Origin::Special(special))))
    }
}
