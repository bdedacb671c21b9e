//! Fields of messages: little-endian numbers, one after the other.

use crate::error::{Error, Result};

/// Appends fields.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn flag(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn maybe(&mut self, value: Option<u64>) -> &mut Self {
        self.flag(value.is_some());
        self.u64(value.unwrap_or(0))
    }

    /// A text of at most 65535 bytes; what is longer is cut off.
    pub fn text(&mut self, text: &str) -> &mut Self {
        let mut end = text.len().min(usize::from(u16::MAX));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
        self
    }
}

/// Takes fields, and never believes a length.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let split = self.0.split_at_checked(len);
        let (taken, rest) = split.ok_or_else(|| Error::Protocol("fields are missing".into()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::Protocol(format!("{other} is neither yes nor no"))),
        }
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn maybe(&mut self) -> Result<Option<u64>> {
        let there = self.flag()?;
        let value = self.u64()?;
        Ok(there.then_some(value))
    }

    pub fn text(&mut self) -> Result<String> {
        let len = self.u16()?;
        let bytes = self.take(usize::from(len))?;
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|_| Error::Protocol("a text is not UTF-8".into()))?.to_owned())
    }

    /// Nothing may be left over.
    pub fn end(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(Error::Protocol(format!("{more} bytes more than the fields need"))),
        }
    }
}
