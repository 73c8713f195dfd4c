"""The cloudflare SDK, unmodified, makes, deploys and lists dynamic routes; openai and anthropic ask them."""
import anthropic
import openai
import pytest

from conftest import CHAT, Server

ASK = [{"role": "user", "content": "Say hello."}]
PLACE = {"account_id": "default", "gateway_id": "default"}


def elements(*models):
    """The models in order, each the fallback of the one before."""
    found = [{"id": "start", "type": "start", "outputs": {"next": {"element_id": "m0"}}}]
    for index, (provider, model) in enumerate(models):
        outputs = {"success": {"element_id": "end"}}
        outputs["fallback"] = {"element_id": f"m{index + 1}" if index + 1 < len(models) else "end"}
        properties = {"provider": provider, "model": model, "retries": 0, "timeout": 60000}
        found.append({"id": f"m{index}", "type": "model", "properties": properties, "outputs": outputs})
    return [*found, {"id": "end", "type": "end", "outputs": {}}]


@pytest.fixture(scope="module")
def front(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("routes")
    settings = folder / "hearth.toml"
    settings.write_text(f'[providers.hearth]\nbase-url = "{server.base}/v1"\n')
    front = Server(folder, "--config", str(settings))
    yield front
    front.stop()


def test_a_route_is_made_deployed_listed_and_asked(front):
    import cloudflare

    client = cloudflare.Cloudflare(base_url=f"{front.base}/client/v4", api_token="unused", max_retries=0)
    routing = client.ai_gateway.dynamic_routing
    route = routing.create(name="fast", elements=elements(("hearth", "nobody")), **PLACE)
    assert (route.name, route.version.active, route.deployment.version_id) == ("fast", "true", route.version.version_id)
    listed = routing.list("default", account_id="default")
    assert [(found.id, found.elements[1].properties.model) for found in listed.data.routes] == [(route.id, "nobody")]

    chat = openai.OpenAI(base_url=f"{front.base}/v1", api_key="unused", max_retries=0).chat.completions
    with pytest.raises(openai.NotFoundError):
        chat.create(model="dynamic/fast", messages=ASK)

    version = routing.create_version(route.id, elements=elements(("hearth", "nobody"), ("hearth", CHAT)), **PLACE)
    versions = routing.list_versions(route.id, **PLACE).data.versions
    assert [found.active for found in versions] == ["false", "true"]
    routing.create_deployment(route.id, version_id=versions[0].version_id, **PLACE)
    assert routing.get_version(versions[0].version_id, id=route.id, **PLACE).active == "true"
    assert len(routing.list_deployments(route.id, **PLACE).data.deployments) == 2
    assert version.id == route.id

    answer = chat.with_raw_response.create(model="dynamic/fast", messages=ASK, max_tokens=4)
    assert [answer.headers[f"cf-aig-{name}"] for name in ("model", "provider", "step")] == [CHAT, "hearth", "1"]
    assert answer.parse().usage.completion_tokens == 4
    client = anthropic.Anthropic(base_url=front.base, api_key="unused", max_retries=0)
    assert client.messages.create(model="dynamic/fast", messages=ASK, max_tokens=4).usage.output_tokens == 4

    assert routing.update(route.id, name="quick", **PLACE).route.name == "quick"
    assert routing.delete(route.id, **PLACE).id == route.id
    assert routing.list("default", account_id="default").data.routes == []
