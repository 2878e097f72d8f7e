//! Predicates by which serde omits fields. Fields that were added later are written only if they
//! differ from their default, so that older documents keep their bytes and hash.

/// Whether the value is its type's default.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whether the number is 1.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) fn is_one(number: &f64) -> bool {
    *number == 1.0
}

/// Whether the count is 1.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) const fn is_single(count: &u32) -> bool {
    *count == 1
}

/// Whether the flag is set.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
pub(crate) const fn is_true(flag: &bool) -> bool {
    *flag
}
