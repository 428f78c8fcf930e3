from dllm_audit.analysis.manifests import compare_manifests, is_reading


def names(differences):
    return [difference.name for difference in differences]


def test_backend_model_and_decode_settings_are_the_treatment(stored):
    found = compare_manifests(stored.run("dual-1"), stored.run("ar-1"))
    assert {"backend", "model", "kind", "settings.threshold", "model.family"} <= set(names(found.treatment))
    assert found.nuisance == ()


def test_everything_else_is_a_nuisance(stored):
    ours = stored.run("dual-1")
    manifest = ours["manifest"]
    theirs = {
        **ours,
        "concurrency": 4,
        "manifest": {
            **manifest,
            "environment": {**manifest["environment"], "threads": 2, "gpu": "another"},
            "engine": {**manifest["engine"], "mode": "compile"},
            "model": {**manifest["model"], "dtype": "bfloat16"},
            "prompts": {**manifest["prompts"], "num_fewshot": 5, "limit": 100},
        },
    }
    assert names(compare_manifests(ours, theirs).nuisance) == [
        "concurrency",
        "environment.threads",
        "model.dtype",
        "engine.mode",
        "prompts.num_fewshot",
        "prompts.limit",
        "environment.gpu",
    ]


def test_readings_of_the_moment_are_drift(stored):
    ours = stored.run("ar-1")
    environment = {**ours["manifest"]["environment"], "cpu_mhz": 2600, "load_average_1min": 0.5}
    theirs = {**ours, "manifest": {**ours["manifest"], "environment": environment}}
    found = compare_manifests(ours, theirs)
    assert names(found.drift) == ["environment.cpu_mhz", "environment.load_average_1min"]
    assert found.nuisance == ()
    assert is_reading("cpu_governor") is False


def test_a_chat_template_belongs_to_the_model(stored):
    ours, theirs = stored.run("dual-1"), stored.run("ar-1")
    prompts = {**theirs["manifest"]["prompts"], "chat_template": True, "prompts_sha256": "cd" * 32}
    other_model = {**theirs, "manifest": {**theirs["manifest"], "prompts": prompts}}
    assert compare_manifests(ours, other_model).nuisance == ()
    same_model = {**other_model, "model": ours["model"]}
    assert names(compare_manifests(ours, same_model).nuisance) == ["prompts.chat_template", "prompts.prompts_sha256"]
