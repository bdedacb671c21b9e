//! Encoding, and what gives lost shards back.

use crate::Error;
use crate::field::{invert, multiply};
use crate::kernel::{Kernel, Product};
use crate::seal::Seal;

/// A code of `data` + `parity` shards, 256 together at most.
#[derive(Debug, Clone)]
pub struct Code {
    data: usize,
    parity: usize,
    /// Rows of the parity shards.
    rows: Vec<Vec<u8>>,
    encoder: Product,
    kernel: Kernel,
}

impl Code {
    /// A code on the fastest kernel of this processor.
    ///
    /// # Errors
    /// [`Error::Shape`] without data or parity shards, or with more than 256.
    pub fn new(data: usize, parity: usize) -> Result<Self, Error> {
        Self::with_kernel(data, parity, Kernel::fastest())
    }

    /// A code on a certain kernel.
    ///
    /// # Errors
    /// As [`Code::new`].
    pub fn with_kernel(data: usize, parity: usize, kernel: Kernel) -> Result<Self, Error> {
        let sound = data > 0 && parity > 0 && data.saturating_add(parity) <= 256;
        if !sound {
            return Err(Error::Shape { data, parity });
        }
        let cauchy = |row: usize, column: usize| invert((data + row) as u8 ^ column as u8);
        // Each column divided by its first element: still every square part can be inverted.
        let scaled = |row, column| multiply(cauchy(row, column), invert(cauchy(0, column)));
        let rows: Vec<Vec<u8>> =
            (0..parity).map(|row| (0..data).map(|column| scaled(row, column)).collect()).collect();
        let encoder = Product::new(&rows);
        Ok(Self { data, parity, rows, encoder, kernel })
    }

    /// Data shards.
    #[must_use]
    pub fn data(&self) -> usize {
        self.data
    }

    /// Parity shards: so many may be lost.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.parity
    }

    /// All shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.data + self.parity
    }

    /// Bytes of a shard when so many bytes are divided.
    #[must_use]
    pub fn shard_length(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.data)
    }

    /// The data shards of these bytes, the last ones filled up with zeros.
    #[must_use]
    pub fn split(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let length = self.shard_length(bytes.len());
        let part = |at: usize| {
            let start = (at * length).min(bytes.len());
            let end = (start + length).min(bytes.len());
            let mut shard = bytes[start..end].to_vec();
            shard.resize(length, 0);
            shard
        };
        (0..self.data).map(part).collect()
    }

    /// Makes the parity shards of these data shards.
    ///
    /// # Errors
    /// [`Error::Count`] or [`Error::Length`] if they are not as many or as long as they must be.
    pub fn encode<D, P>(&self, data: &[D], parity: &mut [P]) -> Result<(), Error>
    where
        D: AsRef<[u8]>,
        P: AsMut<[u8]>,
    {
        self.encoder.run(self.kernel, data, parity)
    }

    /// The row by which a shard follows from the data.
    fn row(&self, shard: usize) -> Vec<u8> {
        match shard.checked_sub(self.data) {
            Some(parity) => self.rows[parity].clone(),
            None => (0..self.data).map(|column| u8::from(column == shard)).collect(),
        }
    }

    /// How the shards `wanted` are made from the shards `present`, of which the first `data` are
    /// used. Good for any range of bytes of the shards, and for any number of stripes.
    ///
    /// # Errors
    /// [`Error::TooFew`] if fewer different shards are present than the data has, [`Error::Count`]
    /// for a shard that the code does not have.
    pub fn recovery(&self, present: &[usize], wanted: &[usize]) -> Result<Recovery, Error> {
        if let Some(given) = present.iter().chain(wanted).find(|shard| **shard >= self.shards()) {
            return Err(Error::Count { expected: self.shards(), given: *given });
        }
        let mut sources: Vec<usize> = Vec::with_capacity(self.data);
        for shard in present {
            if sources.len() < self.data && !sources.contains(shard) {
                sources.push(*shard);
            }
        }
        if sources.len() < self.data {
            return Err(Error::TooFew { present: sources.len(), needed: self.data });
        }
        let inverse = inverted(sources.iter().map(|shard| self.row(*shard)).collect());
        let combined = |shard: &usize| {
            let row = self.row(*shard);
            let element = |column: usize| {
                let products = row.iter().zip(&inverse).map(|(a, b)| multiply(*a, b[column]));
                products.fold(0, |sum, product| sum ^ product)
            };
            (0..self.data).map(element).collect()
        };
        let rows: Vec<Vec<u8>> = wanted.iter().map(combined).collect();
        Ok(Recovery { sources, product: Product::new(&rows), kernel: self.kernel })
    }

    /// Makes every shard that is `None` from the others.
    ///
    /// # Errors
    /// [`Error::TooFew`] if more than [`Code::parity`] are `None`, [`Error::Count`] and
    /// [`Error::Length`] for shards that do not belong together. Nothing is changed then.
    pub fn reconstruct(&self, shards: &mut [Option<Vec<u8>>]) -> Result<(), Error> {
        if shards.len() != self.shards() {
            return Err(Error::Count { expected: self.shards(), given: shards.len() });
        }
        let (present, lost): (Vec<usize>, Vec<usize>) =
            (0..shards.len()).partition(|at| shards[*at].is_some());
        let recovery = self.recovery(&present, &lost)?;
        let whole: Vec<&[u8]> = shards.iter().flatten().map(Vec::as_slice).collect();
        let expected = whole[0].len();
        if let Some(other) = whole.iter().find(|shard| shard.len() != expected) {
            return Err(Error::Length { expected, given: other.len() });
        }
        let mut made = vec![vec![0; expected]; lost.len()];
        recovery.run(&whole[..self.data], &mut made)?;
        for (at, shard) in lost.into_iter().zip(made) {
            shards[at] = Some(shard);
        }
        Ok(())
    }

    /// As [`Code::reconstruct`], after every shard that does not fit its seal was thrown out.
    /// What is made is held against its seal as well. Returns the numbers of the wrong shards.
    ///
    /// # Errors
    /// As [`Code::reconstruct`]; [`Error::TooFew`] also if what was made does not fit.
    pub fn restore(
        &self,
        stripe: u128,
        seals: &[Seal],
        shards: &mut [Option<Vec<u8>>],
    ) -> Result<Vec<usize>, Error> {
        for given in [seals.len(), shards.len()] {
            if given != self.shards() {
                return Err(Error::Count { expected: self.shards(), given });
            }
        }
        let mut wrong = Vec::new();
        for (at, seal) in seals.iter().enumerate() {
            if shards[at].as_ref().is_some_and(|bytes| !seal.fits(stripe, at, bytes)) {
                shards[at] = None;
                wrong.push(at);
            }
        }
        let lost: Vec<usize> = (0..shards.len()).filter(|at| shards[*at].is_none()).collect();
        self.reconstruct(shards)?;
        let unfit = |at: &usize| {
            !shards[*at].as_ref().is_some_and(|bytes| seals[*at].fits(stripe, *at, bytes))
        };
        let unfit: Vec<usize> = lost.iter().copied().filter(|at| unfit(at)).collect();
        for at in &unfit {
            shards[*at] = None;
        }
        match unfit.is_empty() {
            true => Ok(wrong),
            false => Err(Error::TooFew { present: self.shards() - lost.len(), needed: self.data }),
        }
    }
}

/// A plan that makes some shards from `data` others.
#[derive(Debug, Clone)]
pub struct Recovery {
    sources: Vec<usize>,
    product: Product,
    kernel: Kernel,
}

impl Recovery {
    /// The shards that it reads, in the order in which [`Recovery::run`] takes them.
    #[must_use]
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Makes the wanted shards, in the order asked for, from the sources. Any range of bytes will
    /// do, if it is the same in all shards: a degraded read need not read whole shards.
    ///
    /// # Errors
    /// [`Error::Count`] or [`Error::Length`] if they are not as many or as long as they must be.
    pub fn run<D, P>(&self, sources: &[D], wanted: &mut [P]) -> Result<(), Error>
    where
        D: AsRef<[u8]>,
        P: AsMut<[u8]>,
    {
        self.product.run(self.kernel, sources, wanted)
    }
}

/// The inverse of a matrix that has one (Gauss and Jordan).
fn inverted(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let size = matrix.len();
    for (at, row) in matrix.iter_mut().enumerate() {
        row.extend((0..size).map(|column| u8::from(column == at)));
    }
    for pivot in 0..size {
        let found = (pivot..size).find(|row| matrix[*row][pivot] != 0);
        let found = found.expect("any rows of a code are independent, and none comes twice");
        matrix.swap(pivot, found);
        let scale = invert(matrix[pivot][pivot]);
        for element in &mut matrix[pivot] {
            *element = multiply(*element, scale);
        }
        let unit = matrix[pivot].clone();
        for (at, row) in matrix.iter_mut().enumerate() {
            let factor = row[pivot];
            if at != pivot && factor != 0 {
                for (element, other) in row.iter_mut().zip(&unit) {
                    *element ^= multiply(factor, *other);
                }
            }
        }
    }
    matrix.into_iter().map(|row| row[size..].to_vec()).collect()
}
