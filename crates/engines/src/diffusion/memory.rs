//! Divides this machine's memory among its diffusion engines.

use bytesize::ByteSize;
use tintype_config::{EngineTarget, NamedEngine};

use super::machine;

/// Gives each diffusion engine without a memory limit an equal share of what the others leave, so that all of them fit
/// the machine.
///
/// # Errors
/// A message for the operator: the engines' limits add up to more memory than the machine has for them.
fn share(engines: &mut [NamedEngine], limit: u64) -> Result<(), String> {
    let is_diffusion = |engine: &&mut NamedEngine| engine.settings.engine == Some(EngineTarget::Diffusion);
    let mut own: Vec<_> = engines.iter_mut().filter(is_diffusion).collect();
    if own.len() < 2 {
        return Ok(());
    }
    let taken = own.iter().filter_map(|engine| engine.settings.engine_memory).map(|bytes| bytes.as_u64());
    let taken = taken.fold(0, u64::saturating_add);
    let open = own.iter().filter(|engine| engine.settings.engine_memory.is_none()).count() as u64;
    let left = limit.checked_sub(taken).filter(|left| open == 0 || *left >= open);
    let Some(left) = left else {
        let names = own.iter().map(|engine| engine.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "the engines {names} may take {} together, but this machine has {} for them: lower memory in their tables, \
             or render with one of them, such as --engine {}",
            ByteSize(taken),
            ByteSize(limit),
            own[0].name
        ));
    };
    for engine in own.iter_mut().filter(|engine| engine.settings.engine_memory.is_none()) {
        engine.settings.engine_memory = Some(ByteSize(left / open));
    }
    Ok(())
}

/// Divides this machine's memory.
pub fn share_memory(engines: &mut [NamedEngine]) -> Result<(), String> {
    share(engines, machine::memory_limit())
}

#[cfg(test)]
mod tests {
    use tintype_config::ServerSettings;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// Engines with these limits in GiB; 0 for none.
    fn engines(kind: &str, limits: &[u64]) -> Vec<NamedEngine> {
        let flag = |(index, gib): (usize, &u64)| {
            let memory = if *gib == 0 { String::new() } else { format!(",\"--engine-memory={gib}GiB\"") };
            format!("--engine-table=[\"e{index}\",\"--kind={kind}\"{memory}]")
        };
        let flags: Vec<_> = limits.iter().enumerate().map(flag).collect();
        let settings = ServerSettings::from_flags(flags.iter().map(String::as_str)).expect("valid flags");
        settings.worker.engine.engines().expect("engines")
    }

    fn shared(kind: &str, limits: &[u64], limit: u64) -> Result<Vec<Option<u64>>, String> {
        let mut engines = engines(kind, limits);
        share(&mut engines, limit * GIB)?;
        let memory = |engine: &NamedEngine| engine.settings.engine_memory.map(|bytes| bytes.as_u64() / GIB);
        Ok(engines.iter().map(memory).collect())
    }

    #[test]
    fn the_memory_of_several_engines_fits_the_machine() {
        assert_eq!(shared("diffusion", &[0], 12), Ok(vec![None]), "one engine has all of it");
        assert_eq!(shared("diffusion", &[0, 0, 0], 12), Ok(vec![Some(4); 3]));
        assert_eq!(shared("diffusion", &[6, 0, 0], 12), Ok(vec![Some(6), Some(3), Some(3)]));
        assert_eq!(shared("diffusion", &[6, 6], 12), Ok(vec![Some(6), Some(6)]));
        assert_eq!(shared("sketch", &[0, 0], 12), Ok(vec![None, None]));
        for limits in [&[8, 6][..], &[12, 0]] {
            let fault = shared("diffusion", limits, 12).expect_err("too much");
            assert!(fault.contains("e0, e1") && fault.contains("12.0 GiB"), "{fault}");
        }
    }
}
