//! A golden table of costs, worked out by hand.

use super::*;

const fn dollars(per_million: i64) -> Option<NanoUsd> {
    Some(NanoUsd(per_million * 1_000_000_000))
}

/// $2 in, $1 cached, $3 written, $5 written for an hour, $10 out.
fn price() -> Price {
    let rates = Rates {
        input: dollars(2),
        cached_input: dollars(1),
        cache_write: dollars(3),
        cache_write_1h: dollars(5),
        output: dollars(10),
        reasoning: None,
    };
    Price { rates, ..Price::default() }
}

fn usage(input: u64, cached: Option<u64>, written: Option<u64>, output: u64) -> Usage {
    Usage { input, cached_input: cached, cache_write: written, output, ..Usage::default() }
}

#[track_caller]
fn check(price: &Price, usage: Usage, nanos: Option<(i64, i64)>) {
    let expected = nanos.map(|(cost, saved)| Cost { cost: NanoUsd(cost), saved: Some(NanoUsd(saved)) });
    assert_eq!(price.cost(&usage), expected, "{usage:?}");
}

/// Row 3: cached tokens were charged at both prices.
#[test]
fn cached_tokens_are_not_charged_twice() {
    // A million tokens are dollars, a thousand are a million billionths.
    check(
        &price(),
        usage(1000, Some(600), None, 100),
        Some((400 * 2000 + 600 * 1000 + 100 * 10_000, 600_000)),
    );
    check(&price(), usage(1000, Some(0), None, 100), Some((1000 * 2000 + 100 * 10_000, 0)));
    check(&price(), usage(1000, None, None, 100), Some((1000 * 2000 + 100 * 10_000, 0)));
    check(&price(), usage(1000, Some(1000), None, 0), Some((1_000_000, 1_000_000)));
}

#[test]
fn written_tokens_have_their_price_and_those_kept_for_an_hour_another() {
    let some = usage(1000, Some(200), Some(300), 10);
    check(&price(), some, Some((500 * 2000 + 200 * 1000 + 300 * 3000 + 10 * 10_000, 200_000)));
    let long = Usage { cache_write_1h: Some(100), ..some };
    check(&price(), long, Some((500 * 2000 + 200 * 1000 + 200 * 3000 + 100 * 5000 + 10 * 10_000, 200_000)));
}

#[test]
fn thoughts_cost_what_the_answer_does_unless_they_have_a_price() {
    let thinking = Usage { reasoning: Some(40), ..usage(0, None, None, 100) };
    check(&price(), thinking, Some((100 * 10_000, 0)));
    let mut dear = price();
    dear.rates.reasoning = dollars(20);
    check(&dear, thinking, Some((60 * 10_000 + 40 * 20_000, 0)));
}

#[test]
fn a_missing_price_makes_the_cost_unknown_only_where_tokens_need_it() {
    let mut partial = price();
    partial.rates.cached_input = None;
    check(&partial, usage(1000, Some(600), None, 100), None);
    check(&partial, usage(1000, Some(0), None, 100), Some((3_000_000, 0)));
    check(&partial, usage(1000, None, None, 100), Some((3_000_000, 0)));
    check(&Price::default(), usage(0, None, None, 0), Some((0, 0)));
    check(&Price::default(), usage(1, None, None, 0), None);
    // Known cost, unknown savings.
    partial = price();
    partial.rates.input = None;
    let cost = partial.cost(&usage(600, Some(600), None, 0));
    assert_eq!(cost, Some(Cost { cost: NanoUsd(600_000), saved: None }));
}

#[test]
fn usage_that_contradicts_itself_has_no_cost() {
    check(&price(), usage(100, Some(80), Some(30), 0), None);
    check(&price(), usage(100, Some(101), None, 0), None);
    check(&price(), Usage { cache_write_1h: Some(1), ..usage(100, None, None, 0) }, None);
    let mut thoughtful = price();
    thoughtful.rates.reasoning = dollars(1);
    check(&thoughtful, Usage { reasoning: Some(2), ..usage(0, None, None, 1) }, None);
    check(&price(), usage(u64::MAX, None, None, u64::MAX), None);
}

#[test]
fn a_long_prompt_takes_its_own_rates_for_all_of_it() {
    let dear = Rates { input: dollars(4), cached_input: dollars(2), output: dollars(15), ..Rates::default() };
    let long = Price { above: vec![(200_000, dear)], ..price() };
    check(&long, usage(200_000, None, None, 1), Some((200_000 * 2000 + 10_000, 0)));
    check(&long, usage(200_001, Some(1), None, 1), Some((200_000 * 4000 + 2000 + 15_000, 2000)));
}

#[test]
fn a_cost_is_rounded_once_and_half_goes_up() {
    let tiny = |nanos| Price {
        rates: Rates { input: Some(NanoUsd(nanos)), ..Rates::default() },
        ..Price::default()
    };
    check(&tiny(499_999), usage(1, None, None, 0), Some((0, 0)));
    check(&tiny(500_000), usage(1, None, None, 0), Some((1, 0)));
    check(&tiny(500_000), usage(2, None, None, 0), Some((1, 0)));
}

#[test]
fn the_worst_case_is_never_below_the_cost() {
    let mut dear = price();
    dear.rates.reasoning = dollars(20);
    let worst = dear.worst(1000, 100).unwrap();
    assert_eq!(worst, NanoUsd(1000 * 5000 + 100 * 20_000));
    for usage in [
        usage(1000, None, None, 100),
        Usage { cache_write_1h: Some(1000), ..usage(1000, None, Some(1000), 100) },
        Usage { reasoning: Some(100), ..usage(1000, Some(1000), None, 100) },
    ] {
        assert!(dear.cost(&usage).unwrap().cost <= worst, "{usage:?}");
    }
    assert_eq!(Price::default().worst(1, 0), None);
}

#[test]
fn a_tier_has_its_own_price_or_none() {
    let mut tiered = price();
    let flex = Rates { input: dollars(1), output: dollars(5), ..Rates::default() };
    tiered.tiers = vec![(Tier::Flex, Price { rates: flex, ..Price::default() })];
    let usage = usage(1000, None, None, 100);
    check(&tiered, usage, Some((1000 * 2000 + 100 * 10_000, 0)));
    check(&tiered, Usage { tier: Tier::Flex, ..usage }, Some((1000 * 1000 + 100 * 5000, 0)));
    for tier in [Tier::Priority, Tier::Batch, Tier::Other] {
        check(&tiered, Usage { tier, ..usage }, None);
    }
    // Its price of cached tokens is not told.
    check(&tiered, Usage { tier: Tier::Flex, cached_input: Some(1), ..usage }, None);
}

#[test]
fn images_and_sound_have_no_known_price() {
    check(&price(), Usage { other: true, ..usage(1000, None, None, 100) }, None);
}

#[test]
fn the_worst_case_is_that_of_the_dearest_tier() {
    let mut tiered = price();
    let plain = tiered.worst(1000, 100).unwrap();
    let dear = Rates { input: dollars(20), output: dollars(90), ..Rates::default() };
    tiered.tiers = vec![(Tier::Priority, Price { rates: dear, ..Price::default() })];
    let worst = tiered.worst(1000, 100).unwrap();
    assert!(worst > plain);
    let dearest = tiered.cost(&Usage { tier: Tier::Priority, ..usage(1000, None, None, 100) }).unwrap();
    assert_eq!(worst, dearest.cost);
}
