"""Verdicts on features: more that lacks never makes one better."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.cli.arguments import FEATURES
from kshare.cli.features import (
    NEEDS,
    TOUCHED,
    Ability,
    Feature,
    Lack,
    Verdict,
    judged,
    lacks_of_apis,
    lacks_of_settings,
    text_of_api,
)
from kshare.kafka.protocol import apis

LACKS = st.builds(
    Lack,
    st.sampled_from(Feature),
    st.sampled_from(["A lacks", "B lacks", "C lacks"]),
    st.sampled_from(["", "speed", "order"]),
    st.sampled_from(["", "do it"]),
)


def by_feature(lacks: list[Lack]) -> dict[Feature, Verdict]:
    return {verdict.feature: verdict for verdict in judged(lacks)}


@given(st.lists(LACKS), LACKS)
def test_one_more_lack_makes_nothing_better(lacks: list[Lack], more: Lack) -> None:
    before, after = by_feature(lacks), by_feature([*lacks, more])
    assert list(before) == list(Feature)
    assert all(after[feature].ability <= before[feature].ability for feature in Feature)
    assert after[more.feature].ability < Ability.WHOLE
    assert (after[more.feature].ability is Ability.NONE) or more.without


@given(st.lists(LACKS))
def test_what_is_said_twice_counts_once(lacks: list[Lack]) -> None:
    assert judged([*lacks, *lacks]) == judged(lacks)


@given(st.lists(LACKS))
def test_the_text_says_the_ability_and_each_reason_of_it(lacks: list[Lack]) -> None:
    starts = {
        Ability.NONE: "does not work: ",
        Ability.PART: "works without ",
        Ability.WHOLE: "works",
    }
    for verdict in judged(lacks):
        assert verdict.text.startswith(starts[verdict.ability])
        own = [lack for lack in lacks if lack.feature is verdict.feature]
        vital = [lack for lack in own if not lack.without]
        counting = vital if verdict.ability is Ability.NONE else own
        assert all(lack.text in verdict.text for lack in counting)
        assert all(lack.remedy in verdict.remedy for lack in counting)


def test_dead_letters_stand_on_groups() -> None:
    verdicts = by_feature([Lack(Feature.GROUPS, "no log", remedy="make it")])
    assert verdicts[Feature.DEAD_LETTERS] == Verdict(
        Feature.DEAD_LETTERS, Ability.NONE, "does not work: groups do not work", "make it"
    )
    part = by_feature([Lack(Feature.GROUPS, "a short log", "speed")])
    assert part[Feature.DEAD_LETTERS].ability is Ability.WHOLE


def test_real_time_stands_on_the_source() -> None:
    verdicts = by_feature([Lack(Feature.SOURCE, "no Fetch")])
    assert verdicts[Feature.REAL_TIME].text == "does not work: source does not work"
    assert all(list(Feature).index(base) < list(Feature).index(own) for own, base in NEEDS.items())


def test_the_command_names_the_features() -> None:
    assert [name.replace("-", " ") for name in FEATURES] == [str(each) for each in Feature]


# -- requests --------------------------------------------------------------------------------------

ALL_SPOKEN = {key: (api.lowest, api.highest) for key, api in apis.APIS.items()}


def test_each_use_of_a_request_touches_a_feature() -> None:
    """A login has succeeded when versions are known, and whether topics can be made is tried."""
    elsewhere = {apis.Feature.LOGIN, apis.Feature.OWN_TOPICS}
    assert set(TOUCHED) == set(apis.Feature) - elsewhere
    assert {feature for feature, _ in TOUCHED.values()} == set(Feature) - {Feature.DEAD_LETTERS}


def test_a_broker_that_speaks_all_lacks_nothing() -> None:
    assert lacks_of_apis(apis.lacks(ALL_SPOKEN)) == ()


@given(st.sets(st.sampled_from(sorted(apis.APIS))), st.sampled_from(sorted(apis.APIS)))
def test_without_one_more_request_nothing_works_better(known: set[int], more: int) -> None:
    def abilities(keys: set[int]) -> list[Ability]:
        spoken = {key: ALL_SPOKEN[key] for key in keys}
        return [verdict.ability for verdict in judged(lacks_of_apis(apis.lacks(spoken)))]

    pairs = zip(abilities(known - {more}), abilities(known), strict=True)
    assert all(without <= with_ for without, with_ in pairs)


def test_the_requests_of_services() -> None:
    def verdicts(*names: str) -> dict[Feature, str]:
        keys = {key for key, api in apis.APIS.items() if api.name not in names}
        spoken = {key: ALL_SPOKEN[key] for key in keys}
        found = judged(lacks_of_apis(apis.lacks(spoken)))
        return {each.feature: each.text for each in found if each.ability is not Ability.WHOLE}

    assert verdicts("DescribeProducers") == {
        Feature.GROUPS: "works without ending transactions that nobody ends (no DescribeProducers)"
    }, "WarpStream"
    assert verdicts("AddPartitionsToTxn", "EndTxn") == {
        Feature.GROUPS: "works without transactions of consumers (no AddPartitionsToTxn, "
        "no EndTxn)",
        Feature.EXACTLY_ONCE: "does not work: no AddPartitionsToTxn; no EndTxn",
    }, "StreamNative's Ursa, as far as transactions go"
    (lack,) = apis.lacks({**ALL_SPOKEN, 1: (0, 3)})
    assert text_of_api(lack) == "Fetch 0 to 3 (needed: 4 to 11)"


# -- settings of brokers ---------------------------------------------------------------------------


def touched(settings: dict[str, str], brokers: int, *missing: str) -> dict[Feature, str]:
    return {lack.feature: lack.text for lack in lacks_of_settings(settings, brokers, missing)}


def test_nothing_lacks_where_brokers_say_nothing_or_what_suits() -> None:
    assert not touched({}, 1, "__consumer_offsets", "__transaction_state")
    fits = {
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "message.max.bytes": "1048588",
    }
    assert not touched(fits, 3, "__consumer_offsets", "__transaction_state")
    assert not touched({"min.insync.replicas": "", "message.max.bytes": "many"}, 1)


def test_fewer_copies_than_in_sync_replicas() -> None:
    low = touched({"min.insync.replicas": "2", "default.replication.factor": "1"}, 3)
    assert set(low) == {
        Feature.GROUPS,
        Feature.EXACTLY_ONCE,
        Feature.REAL_TIME,
        Feature.PARKED_KEYS,
    }
    assert "a new topic has 1 replica, min.insync.replicas=2" in low[Feature.GROUPS]
    assert touched({"min.insync.replicas": "2", "default.replication.factor": "3"}, 1) == low


def test_topics_of_kafka_that_cannot_be_made() -> None:
    """Kafka's defaults on one broker: it says COORDINATOR_NOT_AVAILABLE for ever."""
    settings = {
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
    }
    assert touched(settings, 1, "__consumer_offsets", "__transaction_state") == {
        Feature.GROUPS: "__consumer_offsets is not there, and needs "
        "offsets.topic.replication.factor=3, but there is 1 broker",
        Feature.EXACTLY_ONCE: "__transaction_state is not there, and needs "
        "transaction.state.log.replication.factor=3, but there is 1 broker",
    }
    assert not touched(settings, 1)


def test_small_messages() -> None:
    assert touched({"message.max.bytes": "1000000"}, 1) == dict.fromkeys(
        (Feature.GROUPS, Feature.DEAD_LETTERS),
        "message.max.bytes=1,000,000 is below Kafka's default of 1,048,588",
    )


def test_short_transactions() -> None:
    (lack,) = lacks_of_settings({"transaction.max.timeout.ms": "60000"}, 1, ())
    assert (lack.feature, lack.without) == (Feature.EXACTLY_ONCE, "batches of over 60,000 ms")
    assert lack.remedy == "set kafka.transaction.timeout.ms=60000"
    assert not touched({"transaction.max.timeout.ms": "900000"}, 1)
