//! A model of one layer with weights that mean nothing, in the layout of the Hugging Face hub. It has
//! a token for each printable character.

use std::path::Path;

use serde_json::{Map, Value, json};

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
/// `$`, which ends a turn.
const END: u32 = 4;

/// Writes it into `folder`.
pub(super) fn write(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let characters = (' '..='~').chain(['\n']).zip(0_u32..);
    let vocabulary: Map<String, Value> = characters.map(|(of, id)| (of.to_string(), id.into())).collect();
    let size = vocabulary.len();
    let end = json!({ "id": END, "content": "$", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true });
    let split = json!({ "type": "Split", "pattern": { "Regex": "[\\s\\S]" }, "behavior": "Isolated", "invert": false });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [end], "pre_tokenizer": split, "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    });
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}${% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
        "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": size, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true, "eos_token_id": END,
        "torch_dtype": "float32",
    });
    for (name, value) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({ "chat_template": template, "eos_token": "$" })),
        ("config.json", config),
    ] {
        std::fs::write(folder.join(name), value.to_string()).unwrap();
    }
    std::fs::write(folder.join("model.safetensors"), tensors(size)).unwrap();
}

/// The weights: a header in JSON after its length, and the numbers.
fn tensors(vocabulary: usize) -> Vec<u8> {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
        (layer("input_layernorm"), vec![WIDTH]),
        (layer("post_attention_layernorm"), vec![WIDTH]),
        (layer("mlp.gate_proj"), vec![HIDDEN, WIDTH]),
        (layer("mlp.up_proj"), vec![HIDDEN, WIDTH]),
        (layer("mlp.down_proj"), vec![WIDTH, HIDDEN]),
    ];
    shapes
        .extend(["q", "k", "v", "o"].map(|of| (layer(&format!("self_attn.{of}_proj")), vec![WIDTH, WIDTH])));
    let (mut header, mut data, mut state) = (Map::new(), Vec::<u8>::new(), 1_u32);
    for (name, shape) in shapes {
        let start = data.len();
        for _ in 0..shape.iter().product() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let drawn = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            let value = if shape.len() == 1 { 1.0 } else { 0.3 * drawn };
            data.extend(value.to_le_bytes());
        }
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name, entry);
    }
    let header = Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
