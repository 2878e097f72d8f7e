//! Reward shaping, before advantages are computed.

use millrace_schemas::submit::Shaping;

/// The shaped reward of a rollout of `tokens` sampled tokens: cut to ± `clip`, then less the
/// penalty of an overlong one.
#[must_use]
pub fn shaped(shaping: &Shaping, reward: f64, tokens: usize) -> f64 {
    let cut = if shaping.clip > 0.0 { reward.clamp(-shaping.clip, shaping.clip) } else { reward };
    cut + shaping.overlong_penalty * overlong(shaping, tokens)
}

/// 0 up to the buffer, −1 from `overlong_tokens` on, and a straight line between. Yu et al.,
/// "DAPO", 2025, equation 13.
#[must_use]
pub fn overlong(shaping: &Shaping, tokens: usize) -> f64 {
    let (limit, buffer) = (f64::from(shaping.overlong_tokens), f64::from(shaping.overlong_buffer));
    if shaping.overlong_tokens == 0 {
        return 0.0;
    }
    let over = tokens as f64 - (limit - buffer);
    if buffer == 0.0 { -f64::from(u8::from(over >= 0.0)) } else { -(over / buffer).clamp(0.0, 1.0) }
}
