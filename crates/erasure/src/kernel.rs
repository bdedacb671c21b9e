//! Sums of products of shards with constants, by the instructions that the processor has.

use crate::Error;
use crate::field::Halves;

/// Which instructions multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Kernel {
    /// Works everywhere.
    pub const PORTABLE: Self = Self(Instructions::Portable);

    /// All that this processor can do, the fastest first. A kernel exists only where it can run.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut kernels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                kernels.push(Self(Instructions::Avx2));
            }
            if is_x86_feature_detected!("ssse3") {
                kernels.push(Self(Instructions::Ssse3));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            kernels.push(Self(Instructions::Neon));
        }
        kernels.push(Self::PORTABLE);
        kernels
    }

    /// The fastest of them.
    #[must_use]
    pub fn fastest() -> Self {
        Self::available()[0]
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Instructions::Ssse3 => "ssse3",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => "neon",
        }
    }

    /// `out` = the sum of `factors[i]` times `inputs[i]` in `start..end`.
    fn combine(self, factors: &[Halves], inputs: &[&[u8]], start: usize, out: &mut [u8]) {
        // The vector kernels read by pointers; this is what makes that sound.
        let end = start + out.len();
        assert!(factors.len() == inputs.len() && inputs.iter().all(|input| end <= input.len()));
        let done = match self.0 {
            Instructions::Portable => 0,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a kernel is only made where the processor has AVX2; lengths as asserted.
            Instructions::Avx2 => unsafe { x86::avx2(factors, inputs, start, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: such a kernel is only made where the processor has SSSE3; lengths as asserted.
            Instructions::Ssse3 => unsafe { x86::ssse3(factors, inputs, start, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: such a kernel is only made where the processor has NEON; lengths as asserted.
            Instructions::Neon => unsafe { arm::neon(factors, inputs, start, out) },
        };
        for (at, byte) in out.iter_mut().enumerate().skip(done) {
            let products =
                factors.iter().zip(inputs).map(|(f, input)| f.multiply(input[start + at]));
            *byte = products.fold(0, |sum, product| sum ^ product);
        }
    }
}

/// A matrix ready to be multiplied with shards.
#[derive(Debug, Clone)]
pub struct Product {
    rows: Vec<Vec<Halves>>,
}

/// Bytes of each shard that are worked on at once: the inputs stay in the first-level cache while
/// one output after the other is made from them.
const BLOCK: usize = 4096;

impl Product {
    /// By the rows of a matrix.
    pub fn new(rows: &[Vec<u8>]) -> Self {
        let halves = |row: &Vec<u8>| row.iter().map(|factor| Halves::of(*factor)).collect();
        Self { rows: rows.iter().map(halves).collect() }
    }

    /// Each output becomes the sum of its row times the inputs.
    pub fn run<D, P>(&self, kernel: Kernel, inputs: &[D], outputs: &mut [P]) -> Result<(), Error>
    where
        D: AsRef<[u8]>,
        P: AsMut<[u8]>,
    {
        let Some(first) = self.rows.first() else { return Ok(()) };
        if first.len() != inputs.len() {
            return Err(Error::Count { expected: first.len(), given: inputs.len() });
        }
        if self.rows.len() != outputs.len() {
            return Err(Error::Count { expected: self.rows.len(), given: outputs.len() });
        }
        let inputs: Vec<&[u8]> = inputs.iter().map(AsRef::as_ref).collect();
        let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(AsMut::as_mut).collect();
        let expected = inputs[0].len();
        let mut lengths = inputs.iter().map(|i| i.len()).chain(outputs.iter().map(|o| o.len()));
        if let Some(given) = lengths.find(|length| *length != expected) {
            return Err(Error::Length { expected, given });
        }
        for start in (0..expected).step_by(BLOCK) {
            let end = (start + BLOCK).min(expected);
            for (row, output) in self.rows.iter().zip(&mut outputs) {
                kernel.combine(row, &inputs, start, &mut output[start..end]);
            }
        }
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_and_si128, _mm_load_si128, _mm_loadu_si128, _mm_set1_epi8,
        _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128,
        _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256, _mm256_set1_epi8,
        _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
        _mm256_xor_si256,
    };

    use crate::field::Halves;

    /// Returns how many bytes of `out` it made.
    ///
    /// # Safety
    /// The processor has AVX2; there are as many factors as inputs, and each input has at least
    /// `start + out.len()` bytes.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(
        factors: &[Halves],
        inputs: &[&[u8]],
        start: usize,
        out: &mut [u8],
    ) -> usize {
        let mask = _mm256_set1_epi8(15);
        let whole = out.len() / 64 * 64;
        for at in (0..whole).step_by(64) {
            let mut sums = [_mm256_setzero_si256(); 2];
            for (factor, input) in factors.iter().zip(inputs) {
                // SAFETY: both halves are 16 bytes at a multiple of 16.
                let (low, high) = unsafe {
                    (
                        _mm_load_si128(factor.low.as_ptr().cast::<__m128i>()),
                        _mm_load_si128(factor.high.as_ptr().cast::<__m128i>()),
                    )
                };
                let low = _mm256_broadcastsi128_si256(low);
                let high = _mm256_broadcastsi128_si256(high);
                for (half, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: start + at + 64 is within the input, as the caller promises.
                    let bytes = unsafe {
                        let from = input.as_ptr().add(start + at + 32 * half);
                        _mm256_loadu_si256(from.cast::<__m256i>())
                    };
                    let lows = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask));
                    let highs = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask);
                    let highs = _mm256_shuffle_epi8(high, highs);
                    *sum = _mm256_xor_si256(*sum, _mm256_xor_si256(lows, highs));
                }
            }
            for (half, sum) in sums.into_iter().enumerate() {
                // SAFETY: at + 64 is within `out`.
                unsafe {
                    let to = out.as_mut_ptr().add(at + 32 * half);
                    _mm256_storeu_si256(to.cast::<__m256i>(), sum);
                }
            }
        }
        whole
    }

    /// Returns how many bytes of `out` it made.
    ///
    /// # Safety
    /// As [`avx2`], with SSSE3.
    #[target_feature(enable = "ssse3")]
    pub unsafe fn ssse3(
        factors: &[Halves],
        inputs: &[&[u8]],
        start: usize,
        out: &mut [u8],
    ) -> usize {
        let mask = _mm_set1_epi8(15);
        let whole = out.len() / 16 * 16;
        for at in (0..whole).step_by(16) {
            let mut sum = _mm_setzero_si128();
            for (factor, input) in factors.iter().zip(inputs) {
                // SAFETY: both halves are 16 bytes at a multiple of 16; start + at + 16 is within
                // the input, as the caller promises.
                let (low, high, bytes) = unsafe {
                    (
                        _mm_load_si128(factor.low.as_ptr().cast::<__m128i>()),
                        _mm_load_si128(factor.high.as_ptr().cast::<__m128i>()),
                        _mm_loadu_si128(input.as_ptr().add(start + at).cast::<__m128i>()),
                    )
                };
                let lows = _mm_shuffle_epi8(low, _mm_and_si128(bytes, mask));
                let highs = _mm_and_si128(_mm_srli_epi64::<4>(bytes), mask);
                let highs = _mm_shuffle_epi8(high, highs);
                sum = _mm_xor_si128(sum, _mm_xor_si128(lows, highs));
            }
            // SAFETY: at + 16 is within `out`.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().add(at).cast::<__m128i>(), sum) };
        }
        whole
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::{
        vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
    };

    use crate::field::Halves;

    /// Returns how many bytes of `out` it made.
    ///
    /// # Safety
    /// The processor has NEON; there are as many factors as inputs, and each input has at least
    /// `start + out.len()` bytes.
    #[target_feature(enable = "neon")]
    pub unsafe fn neon(
        factors: &[Halves],
        inputs: &[&[u8]],
        start: usize,
        out: &mut [u8],
    ) -> usize {
        let mask = vdupq_n_u8(15);
        let whole = out.len() / 16 * 16;
        for at in (0..whole).step_by(16) {
            let mut sum = vdupq_n_u8(0);
            for (factor, input) in factors.iter().zip(inputs) {
                // SAFETY: both halves are 16 bytes; start + at + 16 is within the input, as the
                // caller promises.
                let (low, high, bytes) = unsafe {
                    (
                        vld1q_u8(factor.low.as_ptr()),
                        vld1q_u8(factor.high.as_ptr()),
                        vld1q_u8(input.as_ptr().add(start + at)),
                    )
                };
                let lows = vqtbl1q_u8(low, vandq_u8(bytes, mask));
                let highs = vqtbl1q_u8(high, vshrq_n_u8::<4>(bytes));
                sum = veorq_u8(sum, veorq_u8(lows, highs));
            }
            // SAFETY: at + 16 is within `out`.
            unsafe { vst1q_u8(out.as_mut_ptr().add(at), sum) };
        }
        whole
    }
}
