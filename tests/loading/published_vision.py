"""Published configurations of Qwen3-VL and PaddleOCR-VL, as far as they decide the layers."""

from typing import Any

_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    "rope_theta": 5000000,
    "vocab_size": 151936,
}
_OUTER: dict[str, Any] = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
_VISION: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN3_VL_4B = _OUTER | {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": _TEXT
    | {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "model_type": "qwen3_vl_text",
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
    },
    "tie_word_embeddings": True,
    "vision_config": _VISION
    | {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "out_hidden_size": 2560,
    },
}
QWEN3_VL_30B = _OUTER | {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": _TEXT
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
    },
    "tie_word_embeddings": False,
    "vision_config": _VISION
    | {
        "deepstack_visual_indexes": [8, 16, 24],
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "model_type": "qwen3_vl_moe",
        "out_hidden_size": 2048,
    },
}
_PADDLEOCR_TEXT: dict[str, Any] = {
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 131072,
    "num_attention_heads": 16,
    "num_hidden_layers": 18,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "use_bias": False,
    "vocab_size": 103424,
}
PADDLEOCR_VL = _PADDLEOCR_TEXT | {
    "architectures": ["PaddleOCRVLForConditionalGeneration"],
    "image_token_id": 100295,
    "model_type": "paddleocr_vl",
    "rope_is_neox_style": True,
    "use_3d_rope": True,
    "video_token_id": 101307,
    "vision_config": {
        "architectures": ["PaddleOCRVisionModel"],
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "image_size": 384,
        "intermediate_size": 4304,
        "layer_norm_eps": 1e-06,
        "model_type": "paddleocr_vl",
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
    },
    "vision_start_token_id": 101305,
    "weight_share_add_bias": True,
}
# transformers 5.24 takes the text of a flat file for tied.
PADDLEOCR_VL_NESTED = {"text_config": _PADDLEOCR_TEXT | {"model_type": "paddleocr_vl_text"}}
