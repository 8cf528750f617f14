"""ONNX graphs of antiphon's own models, with any number of utterances and frames.

A graph is a part of a model that a decoder calls: the whole of a CTC model; the encoder, the prediction
network and the joint network of a transducer; the encoder and one step of the decoder of an attention model.
The names of inputs and outputs are those of icefall, which sherpa-onnx reads.

A graph takes features as the front end computes them, but without their normalisation: it normalises each
utterance and rounds to float16 by itself, as the features that the model was trained on.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.data.batches import Batch
from antiphon.data.frontends import SMALLEST_DEVIATION
from antiphon.exporting.onnx_lstm import with_onnx_lstms
from antiphon.models.ctc import Framewise
from antiphon.models.las import Decoder, Las, Memory
from antiphon.models.layers import frame_mask
from antiphon.models.model import Model
from antiphon.models.transducer import Transducer

OPSET = 18
EXAMPLE_ROWS, EXAMPLE_FRAMES = 2, 52  # sizes that are traced; both stay free in the graph
INSTALL = "pip install 'antiphon[export]'"


@dataclass(frozen=True)
class Graph:
    """A part of a model that becomes one file.

    inputs: name -> an example; a dimension of its shape is free if `free` names it, by its position.
    metadata: stored in the file.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    free: Mapping[str, Sequence[int]]
    outputs: Sequence[str]
    metadata: Mapping[str, str] = field(default_factory=dict)


class Features(nn.Module):
    """Features [N, T, D] as the model was trained on: normalised within the lengths [N], in float16."""

    def __init__(self, dim: int, normalise: bool) -> None:
        super().__init__()
        self.dim, self.normalise = dim, normalise

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if self.normalise:
            # In float64, so that a sum in another order rounds to the same float16.
            values, count = x.double(), lengths[:, None, None].double()
            mask = frame_mask(lengths, x.shape[1])[:, :, None].double()
            centred = values - (values * mask).sum(dim=1, keepdim=True) / count
            deviation = ((centred.square() * mask).sum(dim=1, keepdim=True) / count).sqrt()
            x = (centred / deviation.clamp(min=SMALLEST_DEVIATION)).float()
        return x.half().float()


def graphs_of(model: Model, features: Features, num_tokens: int) -> dict[str, Graph]:
    """Return the graphs of a model by the names of their files; see `kind_of` for the models."""
    exportable = with_onnx_lstms(copy.deepcopy(model)).eval().cpu()
    with torch.no_grad():
        if isinstance(model, Transducer):
            return _transducer_graphs(exportable, features, num_tokens)
        if isinstance(model, Las):
            return _las_graphs(exportable, features)
        return {"model": _ctc_graph(exportable, features, num_tokens)}


def kind_of(model: Model) -> str:
    """Return ctc, transducer or las; refuse a model that cannot be exported, with advice."""
    if type(model).__module__.startswith("antiphon.models.huggingface"):
        raise ValueError(
            "a Hugging Face model is not exported: Hugging Face has its own tools. Write its network with "
            "antiphon.Recognizer.load(run).model.network.save_pretrained(folder), and export that with "
            "`optimum-cli export onnx`"
        )
    for kind, of_kind in (("transducer", Transducer), ("las", Las), ("ctc", Framewise)):
        if isinstance(model, of_kind):
            return kind
    raise ValueError(
        f"a {type(model).__name__} cannot be exported: antiphon exports CTC models, transducers and LAS"
    )


def check_packages() -> None:
    """Refuse to begin if a package is missing that writes or runs graphs."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ValueError(f"an export needs {' and '.join(missing)}: {INSTALL}")


def write_graph(graph: Graph, path: Path) -> None:
    """Trace a graph and write it to an ONNX file."""
    import onnx

    shapes = {name: dict.fromkeys(graph.free[name], torch.export.Dim.DYNAMIC) for name in graph.inputs}
    with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            graph.module,
            kwargs=dict(graph.inputs),
            dynamic_shapes=shapes,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    body = program.model_proto
    # Shapes between nodes are hints only, and quantisation refuses those of transposed weights.
    del body.graph.value_info[:]
    for key, value in graph.metadata.items():
        body.metadata_props.add(key=key, value=value)
    onnx.save(body, path)


# --- CTC ------------------------------------------------------------------------------------------


class CtcGraph(nn.Module):
    """Features and lengths to log probabilities [N, T', num_tokens] and their lengths [N]."""

    def __init__(self, model: nn.Module, features: Features) -> None:
        super().__init__()
        self.model, self.features = model, features

    def forward(self, x: Tensor, x_length: Tensor) -> tuple[Tensor, ...]:
        x = self.features(x, x_length)
        no_tokens = torch.zeros(1, 0, dtype=torch.int64)
        outputs: tuple[Tensor, ...] = self.model(Batch(x, x_length, no_tokens, torch.tensor([0]), (0,)))
        return outputs


def _ctc_graph(model: Any, features: Features, num_tokens: int) -> Graph:
    return Graph(
        CtcGraph(model, features),
        _speech(features, "x", "x_length"),
        {"x": (0, 1), "x_length": (0,)},
        ("log_probs", "log_probs_len"),
        {"model_type": "zipformer2_ctc", "vocab_size": str(num_tokens), "subsampling_factor": _stack(model)},
    )


# --- Transducers ----------------------------------------------------------------------------------


class TransducerEncoder(nn.Module):
    """Features and lengths to frames as the joint network takes them [N, T', joint_dim]."""

    def __init__(self, model: Transducer, features: Features) -> None:
        super().__init__()
        self.features, self.encoder, self.from_encoder = features, model.encoder, model.from_encoder

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        frames, lengths = self.encoder(self.features(x, x_lens), x_lens)
        return self.from_encoder(frames), lengths


class TransducerDecoder(nn.Module):
    """The last labels [N, context] to states as the joint network takes them [N, joint_dim]."""

    def __init__(self, model: Transducer) -> None:
        super().__init__()
        self.prediction, self.from_prediction = model.prediction, model.from_prediction

    def forward(self, y: Tensor) -> Tensor:
        # sherpa-onnx writes −1 before the first label, antiphon 0.
        states: Tensor = self.from_prediction(self.prediction(y.clamp(min=0)))
        return states


class TransducerJoiner(nn.Module):
    """A frame and a state, each [N, joint_dim], to logits [N, num_tokens]."""

    def __init__(self, model: Transducer) -> None:
        super().__init__()
        self.output = model.output

    def forward(self, encoder_out: Tensor, decoder_out: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.tanh(encoder_out + decoder_out))
        return logits


def _transducer_graphs(model: Transducer, features: Features, num_tokens: int) -> dict[str, Graph]:
    size, joint = model.config.context, model.config.joint_dim
    joined = {name: torch.zeros(EXAMPLE_ROWS, joint) for name in ("encoder_out", "decoder_out")}
    sizes = {"vocab_size": str(num_tokens), "context_size": str(size), "joiner_dim": str(joint)}
    return {
        "encoder": Graph(
            TransducerEncoder(model, features),
            _speech(features, "x", "x_lens"),
            {"x": (0, 1), "x_lens": (0,)},
            ("encoder_out", "encoder_out_lens"),
            {"model_type": "zipformer2", "subsampling_factor": _stack(model)} | sizes,
        ),
        "decoder": Graph(
            TransducerDecoder(model),
            {"y": torch.zeros(EXAMPLE_ROWS, size, dtype=torch.int64)},
            {"y": (0,)},
            ("decoder_out",),
            sizes,
        ),
        "joiner": Graph(TransducerJoiner(model), joined, dict.fromkeys(joined, (0,)), ("logit",), sizes),
    }


# --- Attention ------------------------------------------------------------------------------------


class LasEncoder(nn.Module):
    """Features and lengths to frames [N, T', dim], keys [N, T', A] and the lengths [N]."""

    def __init__(self, model: Las, features: Features) -> None:
        super().__init__()
        self.features, self.encoder, self.key = features, model.encoder, model.attention.key

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        frames, lengths = self.encoder(self.features(x, x_lens), x_lens)
        return frames, self.key(frames), lengths


class LasStep(nn.Module):
    """One step of the decoder: logits of the next token [N, num_tokens], and the next state.

    Hidden states and carries are [layers, N, decoder_dim], the context [N, dim], the attention [N, T'].
    """

    def __init__(self, model: Las) -> None:
        super().__init__()
        self.model = model
        attention = model.attention
        filters = (attention.location_output.weight @ attention.location.weight).T
        self.register_buffer("filters", filters.clone(), persistent=False)

    def forward(
        self,
        token: Tensor,
        frames: Tensor,
        keys: Tensor,
        lengths: Tensor,
        hidden: Tensor,
        carry: Tensor,
        context: Tensor,
        attention: Tensor,
    ) -> tuple[Tensor, ...]:
        memory = Memory(frames, keys, self.filters, frame_mask(lengths, frames.shape[1]))  # type: ignore[arg-type]
        states = tuple(zip(hidden.unbind(), carry.unbind(), strict=True))
        decoder = Decoder(states, context, attention, context)
        decoder = self.model.step(self.model.embedding(token), decoder, memory)
        logits = self.model.classify(decoder.seen)
        hidden, carry = (torch.stack(parts) for parts in zip(*decoder.states, strict=True))
        return logits, hidden, carry, decoder.context, decoder.weights


def _las_graphs(model: Las, features: Features) -> dict[str, Graph]:
    config, rows, frames = model.config, EXAMPLE_ROWS, EXAMPLE_FRAMES // 2
    states = torch.zeros(config.decoder_layers, rows, config.decoder_dim)
    step = {
        "token": torch.zeros(rows, dtype=torch.int64),
        "frames": torch.zeros(rows, frames, model.encoder.dim),
        "keys": torch.zeros(rows, frames, config.attention_dim),
        "lengths": torch.full((rows,), frames),
        "hidden": states,
        "carry": states.clone(),
        "context": torch.zeros(rows, model.encoder.dim),
        "attention": torch.full((rows, frames), 1 / frames),
    }
    free = {"frames": (0, 1), "keys": (0, 1), "hidden": (1,), "carry": (1,), "attention": (0, 1)}
    outputs = ("logits", "next_hidden", "next_carry", "next_context", "next_attention")
    return {
        "encoder": Graph(
            LasEncoder(model, features),
            _speech(features, "x", "x_lens"),
            {"x": (0, 1), "x_lens": (0,)},
            ("frames", "keys", "lengths"),
        ),
        "decoder": Graph(LasStep(model), step, {name: free.get(name, (0,)) for name in step}, outputs),
    }


def _speech(features: Features, name: str, lengths: str) -> dict[str, Tensor]:
    x = torch.zeros(EXAMPLE_ROWS, EXAMPLE_FRAMES, features.dim)
    return {name: x, lengths: torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES - 9])}


def _stack(model: Any) -> str:
    """Return the number of frames that the encoder joins into one."""
    return str(-(-1000 // model.encoder.num_output_frames(1000)))
