//! Limits of the fields of a `BurstJob`'s spec.

use sahasra_e2e::bursts::{Burst, number};
use serde_json::{Value, json};

use super::{Failure, Limits, equal};

/// PTX of a kernel whose output is the sum of `scalars` arguments of type `u32`.
fn adds(scalars: usize) -> String {
    let parameters: String = (0..scalars).map(|number| format!(", .param .u32 adds_{number}")).collect();
    let added: String = (0..scalars)
        .map(|number| format!("  ld.param.u32 %r2, [adds_{number}];\n  add.u32 %r1, %r1, %r2;\n"))
        .collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .visible .entry adds(.param .u64 adds_out{parameters})\n{{\n  .reg .b32 %r<3>;\n  .reg .b64 %rd<3>;\n  \
         ld.param.u64 %rd1, [adds_out];\n  cvta.to.global.u64 %rd2, %rd1;\n  mov.u32 %r1, 0;\n{added}  \
         st.global.u32 [%rd2], %r1;\n  ret;\n}}\n"
    )
}

/// PTX of a kernel in which each thread writes its number.
const THREADS: &str = "
.version 8.0
.target sm_80
.address_size 64

.visible .entry threads(.param .u64 threads_out)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<5>;

  ld.param.u64 %rd1, [threads_out];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r1;
  ret;
}
";

impl Limits {
    pub(super) async fn failed(&self) -> Result<String, Failure> {
        const FAILED: u64 = 9_000;
        let odd = json!({"type": "u32", "cel": "index % 2 == 1 ? index : 4294967295"});
        let burst = Burst::of("trap_at", "default", "failed", 2 * FAILED)?
            .with("chunks", json!({"count": 2 * FAILED, "parameters": {"where": odd}}))
            .argument(json!({"parameter": "where"}))
            .with("maxFailedChunks", json!(FAILED))
            .with("results", json!("Failed"));
        let job = self.complete(&burst, "failed").await?;
        equal("chunks that failed", number(&job, "/status/chunks/failed"), FAILED as i64)?;
        let list = "get configmap failed-results -o jsonpath={.data.failed\\.csv}";
        let list = self.pool.control_plane.kubectl(list.split(' ')).await?.success()?;
        equal("lines of failed.csv", list.trim_end().lines().count() as u64, FAILED + 1)?;
        Ok("9,000".to_owned())
    }

    /// A burst of the kernel `ptx`, with these arguments after its output.
    fn of_kernel(name: &str, ptx: String, args: Vec<Value>, chunks: Value) -> Result<Burst, Failure> {
        let mut all = vec![json!({"output": {"type": "u32"}})];
        all.extend(args);
        let kernel = json!({"ptx": {"inline": ptx}, "entry": "adds", "block": [1], "args": all});
        Ok(Burst::of("empty", "default", name, 1)?
            .with("kernel", kernel)
            .with("chunks", chunks))
    }

    pub(super) async fn arguments(&self) -> Result<String, Failure> {
        const SCALARS: u64 = 63;
        let args = (1..=SCALARS).map(|value| json!({"scalar": {"type": "u32", "value": value}}));
        let burst = Self::of_kernel("arguments", adds(SCALARS as usize), args.collect(), json!({"count": 10}))?;
        let job = self.complete(&burst, "arguments").await?;
        let sum = 10 * SCALARS * (SCALARS + 1) / 2;
        equal("the sum", number(&job, "/status/aggregate/values/0"), sum as i64)?;
        Ok("64 arguments".to_owned())
    }

    pub(super) async fn parameters(&self) -> Result<String, Failure> {
        const PARAMETERS: u64 = 32;
        const VALUES: u64 = 4_096;
        let name = |number: u64| format!("p{number}");
        let list: Vec<u64> = (0..VALUES).collect();
        let parameters: serde_json::Map<String, Value> = (0..PARAMETERS)
            .map(|number| (name(number), json!({"type": "u32", "list": list})))
            .collect();
        let args = (0..PARAMETERS).map(|number| json!({"parameter": name(number)}));
        let chunks = json!({"count": VALUES, "parameters": parameters});
        let burst = Self::of_kernel("parameters", adds(PARAMETERS as usize), args.collect(), chunks)?;
        let job = self.complete(&burst, "parameters").await?;
        let sum = PARAMETERS * VALUES * (VALUES - 1) / 2;
        equal("the sum", number(&job, "/status/aggregate/values/0"), sum as i64)?;
        Ok("32 of 4,096 values".to_owned())
    }

    pub(super) async fn product(&self) -> Result<String, Failure> {
        const LISTS: usize = 16;
        const VALUES: u64 = 4_096;
        let name = |number: usize| format!("p{number}");
        // One list with the maximum number of values, and other lists whose combinations stay within the maximum number of chunks.
        let lists: Vec<Value> = (0..LISTS)
            .map(|number| {
                let values: Vec<u64> = match number {
                    0 => (0..VALUES).collect(),
                    1..=4 => vec![0, VALUES],
                    _ => vec![0],
                };
                json!({"name": name(number), "type": "u32", "list": values})
            })
            .collect();
        let args = (0..LISTS).map(|number| json!({"parameter": name(number)}));
        let burst = Self::of_kernel("product", adds(LISTS), args.collect(), json!({"product": lists}))?;
        let job = self.complete(&burst, "product").await?;
        let chunks = VALUES << 4;
        equal("chunks that succeeded", number(&job, "/status/chunks/succeeded"), chunks as i64)?;
        let sum = 16 * (VALUES * (VALUES - 1) / 2) + chunks / 2 * 4 * VALUES;
        equal("the sum", number(&job, "/status/aggregate/values/0"), sum as i64)?;
        Ok("16 lists".to_owned())
    }

    pub(super) async fn top(&self) -> Result<String, Failure> {
        const BEST: u64 = 100;
        let burst = Burst::of_steps("default", "top", 1_000, 0)?.with("aggregate", json!({"topK": {"output": 0, "k": BEST}}));
        let job = self.complete(&burst, "top").await?;
        let best = job.data.pointer("/status/aggregate/best").and_then(Value::as_array);
        let found: Option<Vec<i64>> = best.map(|best| best.iter().filter_map(|one| one["index"].as_i64()).collect());
        let indices: Vec<i64> = (0..BEST as i64).collect();
        let reversed: Vec<i64> = (1_000 - BEST as i64..1_000).rev().collect();
        if found.as_ref() != Some(&indices) && found != Some(reversed) {
            return Err(format!("the best are {found:?}").into());
        }
        Ok("100 chunks".to_owned())
    }

    pub(super) async fn summed(&self) -> Result<String, Failure> {
        const ELEMENTS: i64 = 256;
        const CHUNKS: i64 = 100;
        let args = json!([{"output": {"type": "u32", "count": ELEMENTS}}]);
        let kernel = json!({"ptx": {"inline": THREADS}, "entry": "threads", "block": [ELEMENTS], "args": args});
        let burst = Burst::of("empty", "default", "summed", CHUNKS as u64)?.with("kernel", kernel);
        let job = self.complete(&burst, "summed").await?;
        let values = job.data.pointer("/status/aggregate/values").and_then(Value::as_array);
        let sums: Option<Vec<i64>> = values.map(|values| values.iter().filter_map(Value::as_i64).collect());
        equal("the sums", sums, Some((0..ELEMENTS).map(|element| CHUNKS * element).collect()))?;
        Ok("256 elements".to_owned())
    }
}
