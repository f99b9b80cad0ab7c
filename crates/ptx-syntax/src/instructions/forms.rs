//! The tables of instruction forms.

use super::Dialect;

pub(super) const FORMS: &str = "
§9.7.1 Integer arithmetic
add,sub u16|s16|u32|s32|u64|s64
add,sub sat s32
add u16x2|s16x2
mul,mad hi|lo u16|s16|u32|s32|u64|s64
mul,mad wide u16|s16|u32|s32
mad hi sat s32
mul24,mad24 hi|lo u32|s32
mad24 hi sat s32
sad,div,rem u16|s16|u32|s32|u64|s64
abs,neg s16|s32|s64
min,max u16|s16|u32|s32|u64|s64|u16x2|s16x2
min,max relu s16x2|s32
min,max s16x2|s32 relu
popc,clz,brev b32|b64
bfind shiftamt? u32|s32|u64|s64
bfe u32|s32|u64|s64
bfi b32|b64
szext clamp|wrap u32|s32
bmsk clamp|wrap b32
fns b32
dp4a u32|s32 u32|s32
dp2a lo|hi u32|s32 u32|s32
§9.7.2 Extended-precision integer arithmetic
add,sub cc u32|s32|u64|s64
addc,subc cc? u32|s32|u64|s64
mad hi|lo cc u32|s32|u64|s64
madc hi|lo cc? u32|s32|u64|s64
§9.7.3 Floating point
add,sub,mul rn|rz|rm|rp? ftz? f32x2
fma rn|rz|rm|rp ftz? f32x2
testp finite|infinite|number|notanumber|normal|subnormal f32|f64
copysign f32|f64
add,sub,mul rn|rz|rm|rp? ftz? sat? f32
add,sub,mul rn|rz|rm|rp? f64
fma,mad rn|rz|rm|rp ftz? sat? f32
fma,mad rn|rz|rm|rp f64
div approx|full|rn|rz|rm|rp ftz? f32
div rn|rz|rm|rp f64
abs,neg ftz? f32
abs,neg f64
min,max ftz? NaN? f32
min,max ftz? NaN? xorsign abs f32
min,max f64
rcp,sqrt approx|rn|rz|rm|rp ftz? f32
rcp,sqrt rn|rz|rm|rp f64
rcp approx ftz f64
rsqrt approx ftz? f32|f64
sin,cos,lg2,ex2 approx ftz? f32
tanh approx f32
§9.7.4 Half-precision floating point
add,sub,mul rn? ftz? sat? f16|f16x2
add,sub,mul rn? bf16|bf16x2
fma rn ftz? sat? f16|f16x2
fma rn ftz? relu f16|f16x2
fma rn relu? bf16|bf16x2
abs,neg ftz? f16|f16x2
abs,neg bf16|bf16x2
min,max ftz? NaN? f16|f16x2
min,max ftz? NaN? xorsign abs f16|f16x2
min,max NaN? bf16|bf16x2
min,max NaN? xorsign abs bf16|bf16x2
tanh approx f16|f16x2|bf16|bf16x2
ex2 approx ftz? f16|f16x2
ex2 approx ftz bf16|bf16x2
§9.7.5 Mixed-precision floating point
add,sub rn|rz|rm|rp? sat? f32 f16|bf16
fma rn|rz|rm|rp sat? f32 f16|bf16
§9.7.6 Comparison and selection
setp eq|ne and|or|xor? b16|b32|b64
setp eq|ne|lt|le|gt|ge|lo|ls|hi|hs and|or|xor? u16|u32|u64
setp eq|ne|lt|le|gt|ge and|or|xor? s16|s32|s64
setp eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? ftz? f32|f16|f16x2
setp eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? f64|bf16|bf16x2
set eq|ne and|or|xor? u32|s32|f32 b16|b32|b64
set eq|ne|lt|le|gt|ge|lo|ls|hi|hs and|or|xor? u32|s32|f32 u16|u32|u64
set eq|ne|lt|le|gt|ge and|or|xor? u32|s32|f32 s16|s32|s64
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? ftz? u32|s32|f32 f32
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? u32|s32|f32 f64
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? ftz? f16|u16|s16|u32|s32|f32 f16
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? bf16|u16|s16|u32|s32|f32 bf16
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? ftz? f16x2|u32|s32 f16x2
set eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan and|or|xor? bf16x2|u32|s32 bf16x2
selp b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64
slct b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 s32
slct ftz? b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64 f32
§9.7.8 Logic and shifts
and,or,xor,not pred|b16|b32|b64
cnot b16|b32|b64
lop3 or|and? b32
shf l|r wrap|clamp b32
shl b16|b32|b64
shr b16|b32|b64|u16|u32|u64|s16|s32|s64
§9.7.9 Data movement and conversion
mov pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64|f16|f16x2|bf16|bf16x2
mov v2|v4 b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64
shfl sync up|down|bfly|idx b32
prmt b32 f4e|b4e|rc8|ecl|ecr|rc16?
ld weak|volatile|relaxed|acquire|mmio? relaxed? cta|cluster|gpu|sys? global|const|shared|shared::cta|shared::cluster|local|param|param::entry|param::func? ca|cg|cs|lu|cv|nc? [level] nc? [level] v2|v4|v8? b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64
ld,st weak? global|local|shared|shared::cta? ca|cg|cs|lu|cv|nc|wb|wt? [level] b128
ldu global? v2|v4? b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64
st weak|volatile|relaxed|release|mmio? relaxed? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster|local|param|param::func? wb|cg|cs|wt? [level] v2|v4|v8? b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64
st bulk weak? shared::cta?
st async weak? shared::cluster? mbarrier::complete_tx::bytes v2|v4? b32|b64|u32|u64|s32|s64|f32|f64
prefetch global|local? L1|L2|L2::evict_last|L2::evict_normal
prefetchu L1
discard global? L2
applypriority global? L2::evict_normal
createpolicy fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged L2::evict_first|L2::evict_unchanged? b64
createpolicy range global? L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged L2::evict_first|L2::evict_unchanged? b64
createpolicy cvt L2 b64
isspacep global|const|local|shared|shared::cta|shared::cluster|param|param::entry
cvta to? global|const|shared|shared::cta|shared::cluster|local|param|param::entry u64
mapa shared::cluster? u32|u64
getctarank shared::cluster? u32|u64
cvt sat? u8|u16|u32|u64|s8|s16|s32|s64 u8|u16|u32|u64|s8|s16|s32|s64
cvt rni|rzi|rmi|rpi ftz? sat? u8|u16|u32|u64|s8|s16|s32|s64 f32|f16
cvt rni|rzi|rmi|rpi sat? u8|u16|u32|u64|s8|s16|s32|s64 f64|bf16
cvt rn|rz|rm|rp ftz? sat? f32 u8|u16|u32|u64|s8|s16|s32|s64
cvt rn|rz|rm|rp sat? f64|f16 u8|u16|u32|u64|s8|s16|s32|s64
cvt rn|rz|rm|rp bf16 u8|u16|u32|u64|s8|s16|s32|s64
cvt rn|rni|rzi|rmi|rpi? ftz? sat? f32 f32
cvt rn|rni|rzi|rmi|rpi? sat? f64 f64
cvt ftz? sat? f64 f32
cvt rn|rz|rm|rp ftz? sat? f32 f64
cvt ftz? sat? f32 f16
cvt f32|f64 bf16
cvt sat? f64 f16
cvt rn|rz ftz? sat? relu? satfinite? f16 f32
cvt rm|rp ftz? sat? f16 f32
cvt rn|rz relu? satfinite? bf16 f32
cvt rm|rp bf16 f32
cvt rn|rz|rm|rp sat? f16 f64
cvt rn|rz|rm|rp bf16 f64
cvt rn|rz|rni|rzi|rmi|rpi? ftz? sat? f16 f16
cvt rni|rzi|rmi|rpi? bf16 bf16
cvt rn|rz? f16|bf16 f16|bf16
cvt rn|rz relu? satfinite? f16x2|bf16x2 f32
cvt rna satfinite? tf32 f32
cvt rn|rz relu? satfinite? tf32 f32
cvt rn satfinite relu? e4m3x2|e5m2x2 f32|f16x2
cvt rn relu? f16x2 e4m3x2|e5m2x2
cvt pack sat u16|s16 s32
cvt pack sat u8|s8|u4|s4|u2|s2 s32 b32
cp async ca|cg shared|shared::cta global [level]
cp async commit_group|wait_group|wait_all
cp async mbarrier arrive noinc? shared|shared::cta? b64
cp async bulk shared::cta|shared::cluster global mbarrier::complete_tx::bytes multicast::cluster? [level]
cp async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes
cp async bulk global shared::cta bulk_group [level] cp_mask?
cp async bulk prefetch L2 global [level]
cp async bulk commit_group
cp async bulk wait_group read?
cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes add u32|s32|u64
cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes min|max u32|s32
cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes inc|dec u32
cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes and|or|xor b32
cp reduce async bulk global shared::cta bulk_group [level] add u32|s32|u64|f32|f64
cp reduce async bulk global shared::cta bulk_group [level] add noftz f16|bf16
cp reduce async bulk global shared::cta bulk_group [level] min|max u32|s32|u64|s64|f16|bf16
cp reduce async bulk global shared::cta bulk_group [level] inc|dec u32
cp reduce async bulk global shared::cta bulk_group [level] and|or|xor b32|b64
§9.7.10 Textures
tex base|level|grad? 1d|2d|3d|a1d|a2d v4 u32|s32|f32 s32|f32
txq width|height|depth|array_size b32
§9.7.11 Surfaces
suld b 1d|2d|3d|a1d|a2d ca|cg|cs|cv? v2|v4? b8|b16|b32|b64 trap|clamp|zero
sust b 1d|2d|3d|a1d|a2d wb|cg|cs|wt? v2|v4? b8|b16|b32|b64 trap|clamp|zero
suq width|height|depth|array_size b32
§9.7.12 Control flow
bra uni?
brx idx uni?
call uni?
ret uni?
exit
§9.7.13 Synchronisation and communication
bar,barrier cta? sync|arrive aligned?
bar,barrier cta? red popc aligned? u32
bar,barrier cta? red and|or aligned? pred
bar warp sync
clusterlaunchcontrol try_cancel async shared::cta? mbarrier::complete_tx::bytes b128
clusterlaunchcontrol query_cancel is_canceled pred b128
clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128
clusterlaunchcontrol query_cancel get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128
barrier cluster arrive release|relaxed? aligned?
barrier cluster wait acquire? aligned?
membar cta|gl|sys
membar proxy alias
fence sc|acq_rel|acquire|release? cta|cluster|gpu|sys
fence proxy alias|async global|shared::cta|shared::cluster?
fence mbarrier_init release cluster
fence acquire sync_restrict::shared::cluster cluster
fence release sync_restrict::shared::cta cluster
fence proxy async::generic acquire sync_restrict::shared::cluster cluster
fence proxy async::generic release sync_restrict::shared::cta cluster
atom,red sem? scope? space? add [level] u32|s32|u64|s64|f32|f64
atom,red sem? scope? space? add noftz [level] f16|f16x2|bf16|bf16x2
atom,red sem? scope? space? add noftz? [level] v2|v4|v8 f16|f16x2|bf16|bf16x2|f32
atom,red sem? scope? space? min|max noftz [level] v2|v4|v8 f16|f16x2|bf16|bf16x2
red relaxed? cluster? shared::cluster? async mbarrier::complete_tx::bytes add u32|s32|u64
red relaxed? cluster? shared::cluster? async mbarrier::complete_tx::bytes min|max u32|s32
red relaxed? cluster? shared::cluster? async mbarrier::complete_tx::bytes inc|dec u32
red relaxed? cluster? shared::cluster? async mbarrier::complete_tx::bytes and|or|xor b32
atom,red sem? scope? space? min|max [level] u32|s32|u64|s64
atom,red sem? scope? space? inc|dec [level] u32
atom,red sem? scope? space? and|or|xor [level] b32|b64
atom sem? scope? space? exch [level] b32|b64
atom sem? scope? space? cas [level] b16|b32|b64
vote sync all|any|uni pred
vote sync ballot b32
match any|all sync b32|b64
activemask b32
elect sync
redux sync add|min|max u32|s32
redux sync and|or|xor b32
mbarrier init|inval shared|shared::cta? b64
mbarrier expect_tx|complete_tx relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64
mbarrier arrive|arrive_drop expect_tx|noComplete? release|relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64
mbarrier test_wait|try_wait parity? acquire|relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64
mbarrier pending_count b64
§9.7.14 Matrices
mma sync aligned m16n8k8|m16n8k16 row col f16|f32 f16 f16 f16|f32
mma sync aligned m8n8k4 row|col row|col f16|f32 f16 f16 f16
mma sync aligned m8n8k4 row|col row|col f32 f16 f16 f32
mma sync aligned m16n8k8|m16n8k16 row col f32 bf16 bf16 f32
mma sync aligned m16n8k4|m16n8k8 row col f32 tf32 tf32 f32
mma sync aligned m16n8k16|m16n8k32 row col f16|f32 e4m3|e5m2 e4m3|e5m2 f16|f32
mma sync aligned m8n8k16|m16n8k16|m16n8k32 row col satfinite? s32 s8|u8 s8|u8 s32
mma sync aligned m8n8k32|m16n8k32|m16n8k64 row col satfinite? s32 s4|u4 s4|u4 s32
mma sync aligned m8n8k128|m16n8k128|m16n8k256 row col s32 b1 b1 s32 xor|and popc
mma sync aligned m8n8k4|m16n8k4|m16n8k8|m16n8k16 row col f64 f64 f64 f64
wmma load a|b|c sync aligned row|col m16n16k16|m32n8k16|m8n32k16|m16n16k8|m8n8k4 global|shared|shared::cta? f16|bf16|tf32|f64|s8|u8|f32|s32
wmma store d sync aligned row|col m16n16k16|m32n8k16|m8n32k16|m16n16k8|m8n8k4 global|shared|shared::cta? f16|f32|f64|s32
wmma mma sync aligned row|col row|col m16n16k16|m32n8k16|m8n32k16 f16|f32 f16|f32
wmma mma sync aligned row|col row|col m16n16k16|m32n8k16|m8n32k16 f32 bf16 bf16 f32
wmma mma sync aligned row|col row|col m16n16k8 f32 tf32 tf32 f32
wmma mma sync aligned row|col row|col m16n16k16|m32n8k16|m8n32k16 s32 s8|u8 s8|u8 s32 satfinite?
wmma mma sync aligned row|col row|col m8n8k4 rn? f64 f64 f64 f64
wmma load a sync aligned row m8n8k32|m8n8k128 global|shared|shared::cta? s4|u4|b1
wmma load b sync aligned col m8n8k32|m8n8k128 global|shared|shared::cta? s4|u4|b1
wmma load c sync aligned row|col m8n8k32|m8n8k128 global|shared|shared::cta? s32
wmma store d sync aligned row|col m8n8k32|m8n8k128 global|shared|shared::cta? s32
wmma mma sync aligned row col m8n8k32 s32 s4|u4 s4|u4 s32 satfinite?
wmma mma xor|and popc sync aligned row col m8n8k128 s32 b1 b1 s32
ldmatrix,stmatrix sync aligned m8n8 x1|x2|x4 trans? shared|shared::cta? b16
movmatrix sync aligned m8n8 trans b16
§9.7.17 Stack manipulation
alloca u32|u64
stacksave,stackrestore u32|u64
§9.7.18 Video instructions
vadd,vsub,vabsdiff,vmin,vmax u32|s32 u32|s32 u32|s32 sat? add|min|max?
vshl,vshr u32|s32 u32|s32 u32 sat? clamp|wrap add|min|max?
vmad u32|s32 u32|s32 u32|s32 po? sat? shr7|shr15?
vset u32|s32 u32|s32 eq|ne|lt|le|gt|ge add|min|max?
vadd2,vadd4,vsub2,vsub4,vavrg2,vavrg4,vabsdiff2,vabsdiff4,vmin2,vmin4,vmax2,vmax4 u32|s32 u32|s32 u32|s32 sat|add?
vset2,vset4 u32|s32 u32|s32 eq|ne|lt|le|gt|ge add?
§9.7.19 Miscellaneous
trap
brkpt
nanosleep u32
pmevent mask?
griddepcontrol wait|launch_dependents
";

/// Opcodes of the ISA that are rejected, and the feature they need. An opcode in neither table is unknown.
pub(super) const REFUSED: &[(&str, &str)] = &[
    ("tex", "textures of this shape or type, or levels of detail"),
    ("tld4", "gathers of four texels"),
    ("txq", "attributes of textures"),
    ("istypep", "textures and surfaces"),
    ("suld", "surfaces of this shape or type"),
    ("sust", "surfaces of this shape or type, or formatted stores"),
    ("sured", "atomics on surfaces"),
    ("suq", "attributes of surfaces"),
    ("wgmma", "asynchronous warpgroup matrices (wgmma, sm_90a)"),
    ("tcgen05", "tensor memory (tcgen05, sm_100a)"),
    ("tensormap", "tensor maps (TMA)"),
    ("multimem", "multi-GPU memory"),
    ("setmaxnreg", "register reallocation (sm_90a)"),
];

/// Rejected forms of supported instructions: the opcode, the modifier that identifies the form, and the feature it needs.
pub(super) const REFUSED_FORMS: &[(&str, &str, &str)] = &[
    ("mma", "sp", "sparse matrices"),
    ("mma", "sp::ordered_metadata", "sparse matrices"),
    ("mma", "block_scale", "scaled matrices (sm_120a)"),
    ("mma", "kind::f8f6f4", "scaled matrices (sm_120a)"),
    ("ldmatrix", "b8", "8-bit matrices (sm_100a)"),
    ("stmatrix", "b8", "8-bit matrices (sm_100a)"),
    ("atom", "b128", "128-bit atomics"),
    ("cvt", "rs", "stochastic rounding (sm_100a)"),
    ("cvt", "e2m1x2", "4- and 6-bit floats (sm_100a)"),
    ("cvt", "e2m3x2", "4- and 6-bit floats (sm_100a)"),
    ("cvt", "e3m2x2", "4- and 6-bit floats (sm_100a)"),
    ("cvt", "ue8m0x2", "scales of 8 bits (sm_100a)"),
    ("redux", "f32", "reductions of f32 (sm_100a)"),
];

/// Forms that only earlier versions of the ISA or earlier targets have.
pub(super) const EARLIER: &[(Earlier, &str)] = &[
    (Earlier::Unrounded, "sin,cos,ex2,lg2,rsqrt,rcp,sqrt,div ftz? f32"),
    (Earlier::Unrounded, "rcp,sqrt,rsqrt,div,mad f64"),
    (Earlier::TruncatedProduct, "mad sat? f32"),
    (Earlier::Unsynchronised, "vote all|any|uni pred"),
    (Earlier::Unsynchronised, "vote ballot b32"),
    (Earlier::Unsynchronised, "shfl up|down|bfly|idx b32"),
];

/// Condition under which a form of [`EARLIER`] is part of the ISA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// Approximate or rounded by default.
    Unrounded,
    /// `mad.f32` of the first targets.
    TruncatedProduct,
    /// Warp operations without `.sync`.
    Unsynchronised,
}

impl Earlier {
    pub(super) fn needs(self) -> &'static str {
        match self {
            Self::Unrounded => "`.version` up to 1.3, else `.approx` or a rounding modifier",
            Self::TruncatedProduct => "`.target` up to `sm_13`, else a rounding modifier",
            Self::Unsynchronised => "`.target` up to `sm_62` or `.version` up to 6.3, else `.sync`",
        }
    }

    pub(super) fn holds(self, dialect: Dialect) -> bool {
        match self {
            Self::Unrounded => dialect.version < (1, 4),
            Self::TruncatedProduct => dialect.architecture < 20,
            Self::Unsynchronised => dialect.architecture < 70 || dialect.version < (6, 4),
        }
    }
}
