#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tintype_fuzz::model(data);
});
