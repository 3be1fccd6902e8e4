//! The decoder of results: what it saves that a confined process waits for the file, instead of starting with it.

use std::time::Duration;

use hdrhistogram::Histogram;
use tintype_engine::picture::Picture;
use tintype_system::sandbox::Decoder;

use crate::generator::{histogram, now};
use crate::report::Report;
use crate::{Options, Outcome};

const SIDE: u32 = 1024;
/// Time between two pictures, in which the next process starts.
const PAUSE: Duration = Duration::from_millis(60);

/// A picture of slow changes, and one with as much noise as a photograph, whose PNG has about 2 MB.
fn files() -> Outcome<[(&'static str, Vec<u8>); 2]> {
    let picture = |pixel: fn(u32) -> [u8; 3]| {
        Picture::from_rgb(SIDE, SIDE, (0..SIDE * SIDE).flat_map(pixel).collect()).map(|picture| picture.to_png())
    };
    let flat = picture(|at| [at % SIDE, at / SIDE, (at % SIDE + at / SIDE) / 2].map(|level| (level / 4) as u8));
    let photograph = picture(|at| {
        let noise = at.wrapping_mul(0x9e37_79b9) ^ (at.wrapping_mul(0x85eb_ca6b) >> 13);
        [0, 8, 16].map(|shift| ((at % SIDE) / 5 + ((noise >> shift) & 15)) as u8)
    });
    Ok([("flat picture", flat.ok_or("a picture")?), ("photograph", photograph.ok_or("a picture")?)])
}

/// Decodes the same files in turns with both kinds of processes.
pub async fn measure(options: &Options, report: &mut Report) -> Outcome<()> {
    let started = Decoder::new(env!("CARGO_BIN_EXE_tintype"));
    let ready = started.clone().keeping_ready();
    for (name, file) in files()? {
        let (mut with_start, mut waiting, mut encoding) = (histogram(), histogram(), histogram());
        for _ in 0..options.pictures {
            for (decoder, times) in [(&started, &mut with_start), (&ready, &mut waiting)] {
                tokio::time::sleep(PAUSE).await;
                let begun = now();
                let picture = decoder.decode_result(&file).await?;
                times.record(begun.elapsed().as_nanos() as u64)?;
                let begun = now();
                drop(picture.to_png());
                encoding.record(begun.elapsed().as_nanos() as u64)?;
            }
        }
        let millis = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e6;
        let size = format!("{:.1} MB", file.len() as f64 / 1e6);
        for (quantile, label) in [(0.5, "p50"), (0.99, "p99")] {
            let [with_start, waiting] = [&with_start, &waiting].map(|times| millis(times, quantile));
            report.fact(format!("decode a {name} of {size}, {label}, process started for it"), with_start, "ms", None);
            report.fact(format!("  process ready, {label}"), waiting, "ms", None);
            report.fact(format!("  ratio, {label}"), waiting / with_start, "times", None);
            report.fact(format!("  encode it again, {label}"), millis(&encoding, quantile), "ms", None);
        }
    }
    Ok(())
}
