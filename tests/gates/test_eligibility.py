"""What the words of a message alone decide, in many languages."""

from __future__ import annotations

import pytest

from bdh_bridge.gates.eligibility import eligibility, normalise, weigh
from bdh_bridge.gates.reasons import Reason

CASUAL = {
    "english": """Ok!|okkk|thanks a lot for your help!|Hey, how are you doing today?|no problem
        that's great, thank you so much!|good morning everyone|lol|really?|ok?|noted, thanks
        Thank you very much, that is really great and I appreciate it|you`re welcome""",
    "italian": """ciao|grazie|grazieee|Grazie mille per l'aiuto!|va bene, grazie|come stai?|Sì
        Perfetto così, grazie|d’accordo|buongiorno a tutti|ho capito, grazie|tutto a posto""",
    "spanish": "¡Muchas gracias!|sí, claro|¿Cómo estás?|de acuerdo|jajajaja|quién eres?",
    "french": "merci beaucoup pour ton aide|ça va ?|d’accord|c'est parfait merci|bonne journée",
    "german": "Vielen Dank für deine Hilfe!|wie geht's?|Guten Morgen zusammen|alles klar|tschüß",
    "portuguese": "obrigado pela ajuda|tudo bem?|bom dia|está bem|muito obrigada!|não, obrigado",
    "dutch": "dank je wel|hoe gaat het?|tot ziens",
    "polish": "dziękuję bardzo|dzień dobry|dzięki",
    "russian": "спасибо большое!|Как дела?|доброе утро|хахаха",
    "chinese": "你好|谢谢你|好的，谢谢！|哈哈哈哈|你好吗？|謝謝",
    "japanese": "ありがとうございます！|了解です|お疲れ様でした|お元気ですか？|はい、わかりました",
    "korean": "감사합니다|네 알겠습니다|ㅋㅋㅋㅋ|안녕하세요",
    "thai": "ขอบคุณมากครับ|สวัสดีครับ|สบายดีไหม",
    "arabic": "شكرا جزيلا|كيف حالك؟",
    "hindi": "धन्यवाद|आप कैसे हैं?",
    "no words": "👍|🎉🎉🎉|...|???|🙂👨‍👩‍👧|!!!|—|\u200b|~",
}
CUES = {
    "english": """remember the plan|the decision|as before|last time it broke|debug this|my config
        how did we fix it|ok, why did we choose it|the architecture|project status|did we ship""",
    "italian": """l'architettura|errore nel deploy|perché abbiamo scelto Redis|ricordi il piano
        la configurazione|il progetto|l’altra volta|cosa avevamo detto""",
    "spanish": "la arquitectura|qué decidimos ayer|el proyecto|la última vez|recuerda el plan",
    "french": "l'architecture du projet|on a choisi Redis|la dernière fois|une erreur|rappelle-toi",
    "german": "die Konfiguration|letztes Mal|unsere Entscheidung|warum haben wir Redis|ein Fehler",
    "portuguese": "o projeto novo|a decisão|lembra do plano|da última vez|a configuração",
    "dutch": "de beslissing|vorige keer",
    "polish": "decyzja o bazie|pamiętasz plan",
    "russian": "вчера решили|наша архитектура|в прошлый раз",
    "chinese": "数据库配置|上次的决定|還記得嗎",
    "japanese": "前回の設計|決めたこと",
    "korean": "지난번 결정|프로젝트 상태",
    "thai": "การตั้งค่าระบบ|โครงการใหม่",
}
QUESTIONS = {
    "english": "why Redis?|why redis|what's the plan|and where is it|is it up?|who wrote it",
    "italian": "quale porta?|dov'è il file|chi lo usa|è attivo?|come si usa",
    "spanish": "¿por qué Redis?|cuándo sale|dónde está|¿funciona",
    "french": "pourquoi Redis|combien de nœuds|qu'est-ce que c'est|où est-il",
    "german": "warum Redis|wann läuft es|wo liegt es|läuft es?",
    "portuguese": "porquê Redis|qual porta|onde fica|funciona?",
    "russian": "почему Redis|где файл",
    "chinese": "为什么用Redis|端口是多少|能用吗|用了？好",
    "japanese": "なぜRedis|どこですか",
    "korean": "왜 Redis|언제 끝나",
    "thai": "ทำไมใช้ Redis|อยู่ที่ไหน",
    "arabic": "لماذا Redis|هل يعمل؟",
}
SHORT = """make it shorter|run the tests|open http://x.io/?a=1|write me a poem|traduci questo
    haz una lista|écris un poème|schreib ein Gedicht|escreve um poema|写一首诗|詩を書いて|시를 써 줘
    เขียนบทกวี|42|x|she joked|it was fine"""
LONG = """Move the delivery service over to the new machine
    Sposta il servizio delle consegne sulla macchina nuova
    请把这个服务部署到新的服务器上去|このサービスを新しいサーバーに移してください
    이 서비스를 새 서버로 옮기고 로그를 확인해 줘|ช่วยย้ายบริการนี้ไปยังเซิร์ฟเวอร์ใหม่ให้หน่อยนะ
    移行作業は明日の朝に始めてください"""


def _cases(*tables: dict[str, str]) -> list[str]:
    return [case for table in tables for text in table.values() for case in _split(text)]


def _split(text: str) -> list[str]:
    return [part.strip() for line in text.splitlines() for part in line.split("|")]


@pytest.mark.parametrize("message", _cases(CASUAL))
def test_small_talk_is_skipped(message: str) -> None:
    decision = eligibility(message)
    assert (decision.allowed, decision.reason) == (False, Reason.CASUAL)


@pytest.mark.parametrize("message", _cases(CUES))
def test_a_knowledge_cue_passes_however_short(message: str) -> None:
    decision = eligibility(message)
    assert (decision.allowed, decision.reason) == (True, Reason.KNOWLEDGE_CUE)
    assert decision.rule


@pytest.mark.parametrize("message", _cases(QUESTIONS))
def test_a_question_passes_however_short(message: str) -> None:
    decision = eligibility(message)
    assert (decision.allowed, decision.reason) == (True, Reason.QUESTION)


@pytest.mark.parametrize("message", _split(SHORT))
def test_a_short_request_is_skipped(message: str) -> None:
    decision = eligibility(message)
    assert (decision.allowed, decision.reason) == (False, Reason.TOO_SHORT)


@pytest.mark.parametrize("message", _split(LONG))
def test_a_long_message_passes_in_every_script(message: str) -> None:
    decision = eligibility(message)
    assert (decision.allowed, decision.reason) == (True, Reason.LONG_ENOUGH)


@pytest.mark.parametrize(
    ("length", "reason"),
    [(23, Reason.TOO_SHORT), (24, Reason.NO_CUE), (39, Reason.NO_CUE), (40, Reason.LONG_ENOUGH)],
)
def test_bounds_of_the_length(length: int, reason: Reason) -> None:
    message = ("blend those tables into one of them " * 2)[: length - 1].rstrip().ljust(length, "x")
    decision = eligibility(message)
    assert decision.reason == reason
    assert decision.details["bdh.gate.value"] == length
    assert decision.details["bdh.gate.threshold"] == (24 if length < 24 else 40)


def test_an_ideograph_weighs_more_than_a_kana_and_a_mark_or_an_emoji_nothing() -> None:
    assert weigh("漢") > weigh("か") > weigh("ก") > weigh("a") > weigh("🙂") == 0
    assert weigh("ก่") == weigh("ก")
    assert weigh("é") == weigh("e")


def test_casual_words_win_over_a_question_mark_and_a_cue_over_the_length() -> None:
    assert eligibility("how are you?").reason == Reason.CASUAL
    assert eligibility("ok, how are the tables?").reason == Reason.QUESTION
    long_with_cue = "please move the old project files over to the new machine"
    assert eligibility(long_with_cue).reason == Reason.KNOWLEDGE_CUE


def test_writing_habits_make_no_difference() -> None:
    decomposed = "Perche\u0301 no"
    assert normalise(decomposed) == normalise("PERCHÉ  no") == "perche no"
    assert normalise("ＧＲＡＺＩＥ\u3000mille") == "grazie mille"
    assert eligibility("d\u2019accordo").reason == eligibility("d'accordo").reason == Reason.CASUAL
    # Marks that are letters of their script survive.
    assert normalise("がぎ ที่ हिन्दी") == "がぎ ที่ हिन्दी"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\0",
        "\ud800\udfff\ud800",
        "a" * 1_000_000,
        "ok " * 300_000,
        "? " * 300_000,
        "'" * 100_000,
        "ha" * 500_000,
        "漢" * 1_000_000,
        "\u0301" * 1_000_000,
        "é" * 100_000,
        "\u202e\u200d\ufeff" * 1_000,
        "😀" * 100_000,
    ],
    ids=lambda message: repr(message[:4]),
)
def test_hostile_messages_are_decided_too(message: str) -> None:
    assert eligibility(message).gate == "eligibility"
