"""Tables that are made of downloads: of small files in the formats of their sources, and of the true files."""

import hashlib
import io
import lzma
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dpfbo.problems.loans import FILE as LOANS
from dpfbo.problems.places.homes_flats_credit import Credit, Flats, Homes
from dpfbo.problems.property import SOURCES
from dpfbo.problems.readers.csv_table import read_columns
from runners.fetch import command
from runners.fetch.command import main, state_of
from runners.fetch.data_files import DATA_FILES
from tests.helpers.servers import ATTEMPTS, Behaviour, hasten, serving

HOUSE = "bedrooms,bathrooms,sqft_living,sqft_lot,floors,waterfront,view,condition,grade,sqft_above,sqft_basement,"
HOUSE += "yr_built,yr_renovated,zipcode,lat,long,sqft_living15,sqft_lot15"
REST = "3,2.5,1000,5000,2,N,0,3,8,1000,0,1997,0,98019,47.7366,-121.958,2530,15389"
SALES = [
    f"id,date,price,{HOUSE}\n9,20150307T000000,475000,{REST}\n2,20140502T000000,316000,{REST}\n".encode(),
    f"id,date,{HOUSE}\n1,20140502T000000,{REST}\n3,20150101T000000,{REST}\n".encode(),
    b"180000\n4e+05\n",
]
RESALES = lzma.compress(
    b",month,town,flat_type,block,street_name,storey_range,floor_area_sqm,flat_model,lease_commence_date,resale_price,"
    b"resale_year,resale_month,resale_age,ADDRESS,LAT,LNG,X,Y,POSTAL,geometry\n"
    b"0,2023-01,ANG MO KIO,2 ROOM,406,ANG MO KIO AVE 10,01 TO 03,44.0,Improved,1979,267000.0,2023,1,44,"
    b"406 ANG MO KIO AVE 10,1.36200453938712,103.853879910407,30288.2346631354,38229.0674628187,560406,POINT (3 3)\n"
)
WORDS = {"term": " 36 months", "int_rate": "10.65%", "revol_util": "83.70%", "loan_status": "Fully Paid"}
MONEY = {"loan_amnt": 5000, "total_pymnt": 5863.155187, "annual_inc": "NA"}
TEXTS = ("id", "grade", "sub_grade", "emp_length", "home_ownership", "verification_status", "purpose", "addr_state")
NUMBERS = (
    "funded_amnt", "funded_amnt_inv", "installment", "dti", "delinq_2yrs", "inq_last_6mths", "open_acc", "pub_rec",
    "revol_bal", "total_acc", "out_prncp", "total_pymnt_inv", "total_rec_prncp", "total_rec_int", "total_rec_late_fee",
    "recoveries", "collection_recovery_fee", "last_pymnt_amnt",
)  # fmt: skip


def finance() -> bytes:
    """The data frame `finance` of a loan and a headline without an amount, in R's format of text lines."""

    def vector(kind: int, values: list[object], attributes: str = "") -> str:
        return f"{kind + 512 * bool(attributes)}\n{len(values)}\n" + "".join(f"{v}\n" for v in values) + attributes

    def texts(*values: str) -> str:
        return f"16\n{len(values)}\n" + "".join(
            f"262153\n{len(v)}\n{v.replace(' ', chr(92) + '040')}\n" for v in values
        )

    def pairs(**values: str) -> str:
        tags = ((texts(name.replace("_", ".")).partition("\n1\n")[2], value) for name, value in values.items())
        return "".join(f"1026\n1\n{tag}{value}" for tag, value in tags) + "254\n"

    words = {**dict.fromkeys(TEXTS, "A"), **WORDS}
    numbers = {**dict.fromkeys(NUMBERS, 1), **MONEY}
    date = vector(256 + 14, [15309, "NA"], pairs(**{"class": texts("Date")}))
    columns = {name: texts(value, "") for name, value in words.items()}
    columns |= {name: vector(14, [value, "NA"]) for name, value in numbers.items()}
    columns |= {"issue_d": date, "last_pymnt_d": date, "member_id": vector(13, [7, 8])}
    about = {"names": texts(*columns), "row_names": vector(13, ["NA", -2]), "class": texts("data.frame")}
    frame = vector(256 + 19, [column[:-1] for column in columns.values()], pairs(**about))
    return f"RDA2\nA\n2\n197636\n131840\n1026\n1\n262153\n7\nfinance\n{frame}254\n".encode()


Serve = Callable[..., list[Behaviour]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Give the downloads of the shipped entry `name` addresses that send `contents`, and their checksums."""
    hasten(monkeypatch)
    with ExitStack() as servers:

        def entry(name: str, *contents: bytes) -> list[Behaviour]:
            behaviours = [Behaviour(content) for content in contents]
            urls = [servers.enter_context(serving(behaviour)) + "/file" for behaviour in behaviours]
            sums = [hashlib.sha256(content).hexdigest() for content in contents]
            first, *more = zip(urls, sums, map(len, contents), strict=True)
            here = replace(DATA_FILES[name], url=first[0], sha256=first[1], bytes=first[2], more=tuple(more))
            monkeypatch.setattr(command, "DATA_FILES", {name: here})
            return behaviours

        yield entry


def run(root: Path, name: str) -> int:
    return main([name, f"data_dir={root}"])


def state(root: Path, name: str) -> str:
    return state_of(command.DATA_FILES[name], root)


def names_in(root: Path, name: str) -> list[str]:
    return sorted(path.name for path in (root / DATA_FILES[name].path).parent.iterdir())


def made(root: Path, name: str) -> pd.DataFrame:
    assert names_in(root, name) == [Path(DATA_FILES[name].path).name]
    assert state(root, name) == "present"
    return pd.read_csv(root / DATA_FILES[name].path)


def test_homes_are_joined_by_row_and_sorted_by_date_and_id(serve: Serve, tmp_path: Path) -> None:
    serve("homes", *SALES)
    assert run(tmp_path, "homes") == 0
    sales = made(tmp_path, "homes")
    assert sales[["id", "price"]].values.tolist() == [[1, 180000], [2, 316000], [3, 400000], [9, 475000]]
    assert sales["price_per_sqm"][0] == pytest.approx(180000 / 92.90304, abs=0.005)
    assert sales["lon"].tolist() == [-121.958] * 4
    assert "sqft_above" not in sales
    read_columns(tmp_path / Homes.records.file, Homes.records.numbers, (Homes.records.place,))


def test_flats_lose_their_addresses(serve: Serve, tmp_path: Path) -> None:
    serve("flats", RESALES)
    assert run(tmp_path, "flats") == 0
    (flat,) = made(tmp_path, "flats").to_dict("records")
    assert flat == {
        "month": "2023-01", "town": "ANG MO KIO", "flat_type": "2 ROOM", "storey_range": "01 TO 03",
        "lon": 103.8538799, "lat": 1.3620045, "svy21_x": 30288.23, "svy21_y": 38229.07, "floor_area_sqm": 44.0,
        "lease_commence_date": 1979, "resale_price": 267000.0, "price_per_sqm": 6068.18,
    }  # fmt: skip


def test_loans_are_read_from_a_file_of_r(serve: Serve, tmp_path: Path) -> None:
    pytest.importorskip("rdata")
    serve("credit", finance())
    assert run(tmp_path, "credit") == 0
    loans = made(tmp_path, "credit")
    assert len(loans) == 1 and "member_id" not in loans
    wanted = {"term": 36, "int_rate": 10.65, "revol_util": 83.7, "loan_amnt": 5000, "total_pymnt": 5863.16}
    wanted |= {"issue_d": "2011-12-01", "loan_status": "Fully Paid"}
    assert loans.loc[0, list(wanted)].to_dict() == wanted
    assert pd.isna(loans["annual_inc"][0])
    read_columns(tmp_path / LOANS, Credit.records.numbers, (Credit.records.place, Credit.records.target))


def test_without_the_reader_the_download_is_kept_for_the_same_command(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("credit", b"some loans")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rdata", None)
        assert run(tmp_path, "credit") == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: cannot fetch credit from http://")
    assert error.endswith(": the file of loans needs rdata: pip install 'dpfbo[problems]'")
    assert state(tmp_path, "credit") == "partial"
    (again,) = serve("credit", b"some loans")
    whole = replace(command.DATA_FILES["credit"], make=lambda path: pd.DataFrame({"bytes": [path.read_bytes()]}))
    monkeypatch.setattr(command, "DATA_FILES", {"credit": whole})
    assert run(tmp_path, "credit") == 0
    assert made(tmp_path, "credit")["bytes"].tolist() == ["b'some loans'"]
    assert again.asked == []


def test_a_further_download_that_breaks_off_resumes_and_the_others_are_not_sent_again(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = serve("homes", *SALES)
    second.drop_after = [50] * ATTEMPTS
    assert run(tmp_path, "homes") == 1
    assert "are kept, the same command resumes" in capsys.readouterr().err.splitlines()[-1]
    assert (state(tmp_path, "homes"), len(names_in(tmp_path, "homes"))) == ("partial", 2)
    assert run(tmp_path, "homes") == 0
    assert (len(first.asked), second.asked[-1], len(third.asked)) == (1, f"bytes={50 * ATTEMPTS}-", 1)
    assert len(made(tmp_path, "homes")) == 4
    assert run(tmp_path, "homes") == 0
    assert "already there" in capsys.readouterr().out
    assert len(third.asked) == 1


@pytest.mark.parametrize("which", range(3))
def test_a_wrong_checksum_of_any_download_makes_no_table(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: int
) -> None:
    server = serve("homes", *SALES)[which]
    server.content = server.content.replace(b"0", b"1")
    assert run(tmp_path, "homes") == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert hashlib.sha256(SALES[which]).hexdigest() in error and "was deleted" in error
    assert len(names_in(tmp_path, "homes")) == which
    assert not (tmp_path / DATA_FILES["homes"].path).exists()


def test_a_full_disk_leaves_no_half_table_and_keeps_the_downloads(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: pd.DataFrame, out: io.BufferedWriter, **settings: object) -> None:
        out.write(b"half")
        raise OSError(28, "No space left on device")

    serve("homes", *SALES)
    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", full)
        assert run(tmp_path, "homes") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert len(names_in(tmp_path, "homes")) == 3 and state(tmp_path, "homes") == "partial"
    assert run(tmp_path, "homes") == 0
    assert len(made(tmp_path, "homes")) == 4


def test_equal_tables_are_equal_files(serve: Serve, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        serve("flats", RESALES)
        assert run(tmp_path / folder, "flats") == 0
    first, second = (tmp_path / folder / DATA_FILES["flats"].path for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_problems_read_the_files_that_are_made() -> None:
    kinds = (Homes, Flats, Credit)
    files = [(kind.records.fetch, kind.records.file) for kind in kinds]
    files += [(source.fetch, source.file) for source in SOURCES.values()] + [("credit", LOANS)]
    assert all(DATA_FILES[name].path == file for name, file in files)
    assert all(kind.name == kind.records.fetch for kind in kinds)


def test_every_download_of_a_table_is_pinned() -> None:
    for name in ("homes", "flats", "credit"):
        for one in DATA_FILES[name].downloads:
            assert one.url.startswith("https://raw.githubusercontent.com/") and one.bytes
            assert len(bytes.fromhex(one.sha256)) == 32
            assert len(bytes.fromhex(one.url.split("/")[5])) == 20  # the commit
    files = [one.url.rpartition("/")[2] for one in DATA_FILES["homes"].downloads]
    assert files == ["kc_house_data.csv", "kc_house_data_2.csv", "test_price.csv"]


@pytest.mark.parametrize("name", ["homes", "flats", "credit"])
def test_true_downloads_make_the_files_of_earlier_results(real_data: Callable[[str], Path], name: str) -> None:
    """Runs where DPFBO_DATA also has a folder `sources` with the downloads under their own names."""
    file = DATA_FILES[name]
    assert file.make is not None
    paths = [real_data("sources/" + one.url.rpartition("/")[2]) for one in file.downloads]
    for path, one in zip(paths, file.downloads, strict=True):
        assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == (one.bytes, one.sha256)
    earlier = pd.read_csv(real_data(file.path))
    if name == "credit":
        pytest.importorskip("rdata")
    now = pd.read_csv(io.StringIO(file.make(*paths).to_csv(index=False)))
    pd.testing.assert_frame_equal(now, earlier, check_exact=True)
