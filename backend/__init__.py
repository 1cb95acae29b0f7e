"""The vLLM backend. `register` is the whole of it until a server starts with it: nothing else of ours is imported."""


def register() -> None:
    """Put Mjolnir on vLLM's attention backend CUSTOM, and on MJOLNIR where vLLM can have that name (0.32 on).

    vLLM calls it in each of its processes, as the entry point `mjolnir` of the group `vllm.general_plugins`.
    Switched off (`MJOLNIR_ATTN_DISABLE`), or on a vLLM that is not supported, CUSTOM is a stock backend's own class:
    a server started with CUSTOM still serves. What is wrong in the settings is raised when the class is loaded, since
    vLLM only logs what a plugin raises.
    """
    import logging
    import os
    from importlib import import_module

    import vllm
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    supported = ("0.31", "0.32", "0.33")
    log = logging.getLogger("vllm.mjolnir")
    text = os.environ.get("MJOLNIR_ATTN_DISABLE") or os.environ.get("THOR_T5_DISABLE") or ""
    known = ".".join(vllm.__version__.split(".")[:2])
    if text.strip().lower() in ("1", "true", "yes", "on"):
        reason = "Mjolnir is switched off (MJOLNIR_ATTN_DISABLE)"
    elif known not in supported:
        reason = f"Mjolnir supports vLLM {', '.join(supported)} and leaves {vllm.__version__} alone"
    else:
        import_module("mjolnir.backend.registration").register()
        return
    named = os.environ.get("MJOLNIR_ATTN_FALLBACK") or os.environ.get("THOR_T5_FALLBACK")
    names = [named.strip().upper()] if named else ["FLASHINFER", "FLASH_ATTN", "TRITON_ATTN"]
    for name in ["CPU_ATTN"] if current_platform.is_cpu() else names:
        try:
            stock = AttentionBackendEnum[name].get_class()
        except Exception as error:  # a package may fail to import in any way
            log.info("%s cannot stand in for Mjolnir: %s", name, error)
            continue
        path = f"{stock.__module__}.{stock.__qualname__}"
        register_backend(AttentionBackendEnum.CUSTOM, path)
        if hasattr(AttentionBackendEnum, "register"):
            own = AttentionBackendEnum.__members__.get("MJOLNIR", "MJOLNIR")
            register_backend(own, path)
        log.warning("%s: CUSTOM is %s", reason, name)  # vLLM shows no lower level before its plugins were called
        return
    raise RuntimeError(f"{reason}, and none of {', '.join(names)} can be imported to stand in for CUSTOM")
