"""Parts of tensors: written by some ranks, read by others, and refused where rows are missing or there twice."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainer.common.errors import ArtifactError, ConfigError
from trainer.models.tensor_files import MODEL, find_parts, part_name, read_file_header
from trainer.models.tensor_rows import MOST_OPEN, RowRange, Tensors, rows_of, write_part
from trainer.models.weights import check_weights

DIGEST = "0" * 64


def write_parts(folder: Path, tensors: dict[str, torch.Tensor], ranks: int) -> list[Path]:
    """The parts that some ranks write: each its rows, rank 0 what has none."""
    for rank in range(ranks):
        held, row_ranges = {}, {}
        for name, tensor in tensors.items():
            if not tensor.dim():
                held |= {name: tensor} if rank == 0 else {}
                continue
            start, end = rows_of(rank, ranks, len(tensor))
            if end > start:
                held[name], row_ranges[name] = tensor[start:end].clone(), RowRange(start, tuple(tensor.shape))
        write_part(folder / part_name(MODEL, rank, ranks, DIGEST), held, row_ranges)
    return find_parts(folder, MODEL)


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Of more rows than ranks, of as many, of fewer, of none, and without rows."""
    shapes = {"large": (11, 3), "even": (4,), "few": (2, 2, 2), "none": (0, 5), "scalar": ()}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 40])
def test_rows_are_divided_without_gaps_as_torch_divides_them(length: int, ranks: int) -> None:
    chunks = torch.arange(length).chunk(ranks) if length else ()
    for rank in range(ranks):
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(range(*rows_of(rank, ranks, length))) == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("readers", [1, 2, 3, 4, 12])
def test_any_number_of_ranks_reads_its_rows_of_the_parts(
    tensors: dict[str, torch.Tensor], tmp_path: Path, ranks: int, readers: int
) -> None:
    del tensors["none"]  # which no rank holds
    opened = Tensors(write_parts(tmp_path, tensors, ranks))
    assert opened.shapes() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(opened.read(name), tensor)
        assert opened.size(name) == tensor.nbytes
        if tensor.dim():
            found = [opened.read(name, *rows_of(rank, readers, len(tensor))) for rank in range(readers)]
            assert torch.equal(torch.cat(found), tensor)


def test_the_same_part_has_the_same_bytes(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    for _ in range(5):
        pairs = zip(write_parts(tmp_path / "one", tensors, 2), write_parts(tmp_path / "other", tensors, 2), strict=True)
        assert all(one.read_bytes() == other.read_bytes() for one, other in pairs)


def test_parts_that_lack_rows_or_hold_them_twice_are_refused(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, {"large": torch.randn(11, 3)}, 3)
    (tmp_path / "config.json").write_text("{}")
    check_weights(str(tmp_path))
    whole = parts[1].read_bytes()
    parts[1].unlink()
    with pytest.raises(ArtifactError, match="lack row 4 of 'large'; a part is missing"):
        Tensors(find_parts(tmp_path, MODEL))
    with pytest.raises(ConfigError, match="lack row 4 of 'large'"):
        check_weights(str(tmp_path))
    (tmp_path / part_name(MODEL, 0, 4, DIGEST)).write_bytes(whole)
    parts[1].write_bytes(whole)
    with pytest.raises(ArtifactError, match="hold row 4 of 'large' twice"):
        Tensors(find_parts(tmp_path, MODEL))
    with pytest.raises(ArtifactError, match="hold 8 of the 11 rows of 'large'"):
        Tensors(parts[:2])


@pytest.mark.parametrize("told", ['{"a": [0, [9]]}', '{"a": [7, [9, 2]]}', '{"a": [-1, [9, 2]]}', '{"a": 3}', "[]"])
def test_a_header_that_tells_impossible_rows_is_damage(tmp_path: Path, told: str) -> None:
    path = tmp_path / part_name(MODEL, 0, 1, DIGEST)
    save_file({"a": torch.zeros(3, 2)}, path, metadata={"stretches": told})
    with pytest.raises(ValueError, match=r"stretch|shape|header"):
        read_file_header(path)


def test_a_model_of_many_files_is_read_with_few_of_them_mapped(tmp_path: Path) -> None:
    """What is mapped and was read counts as memory of this process."""
    for number in range(3 * MOST_OPEN):
        save_file({f"t{number}": torch.full((4096,), float(number))}, tmp_path / f"{number:05d}.safetensors")
    opened = Tensors(sorted(tmp_path.iterdir()))
    for number in range(3 * MOST_OPEN):
        assert opened.read(f"t{number}")[0] == number
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line}
    assert len(mapped) <= MOST_OPEN
