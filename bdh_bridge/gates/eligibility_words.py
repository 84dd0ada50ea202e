"""The word lists behind :mod:`bdh_bridge.gates.eligibility`: data, one language after another.

Written as people write; accents, case and repeated letters don't matter. Items are separated
by commas. The languages: English, Italian, Spanish, French, German, Portuguese, Dutch, Polish,
Russian, Chinese, Japanese, Korean, Thai, Arabic, Hindi.
"""

from __future__ import annotations

#: Greetings, thanks, acknowledgements, small talk: a message made of these alone is casual.
CASUAL = """
hi, hello, hey, hiya, howdy, yo, sup, hi there, hello there, hey there, good morning,
good evening, good afternoon, good night, morning, gm, gn, welcome, bye, bye bye, goodbye,
see you, see ya, see you later, see you soon, see you tomorrow, talk later, talk soon, later,
cya, ttyl, take care, thanks, thank you, thank u, thx, tnx, tks, ty, tysm, cheers,
much appreciated, appreciated, appreciate it, many thanks, thanks a lot, thanks so much,
thank you so much, thank you very much, you're welcome, no problem, no worries, np, nw,
my pleasure, anytime, don't mention it, ok, okay, okey, okie, oki, okok, k, kk, kay, alright,
all right, all good, fine, sure, sure thing, yes, yeah, yep, yup, ya, yea, no, nope, nah,
maybe, got it, gotcha, i see, understood, noted, roger, copy that, right, correct, exactly,
indeed, agreed, i agree, deal, done, perfect, great, good, nice, cool, awesome, amazing,
excellent, fantastic, wonderful, brilliant, lovely, sweet, super, wow, whoa, oh, ah, hm, hmm,
mhm, uh, uhm, oops, well done, good job, great job, nice one, nice work, good idea,
sounds good, looks good, lgtm, that works, works for me, that's great, that's fine, that's all,
that's it, it's fine, it's ok, i'm good, i'm fine, go on, go ahead, continue, proceed, please,
please do, yes please, no thanks, no thank you, never mind, nevermind, nvm, forget it,
whatever, sorry, my bad, excuse me, pardon, lol, lmao, rofl, omg, brb, idk, wait, one moment,
hold on, ping, pong, test, testing, how are you, how are you doing, how are u, how r u,
how's it going, how is it going, how do you do, what's up, whats up, wassup, are you there,
you there, are you ok, anybody there, who are you, really, is that so, for real, seriously,
no way, have a nice day, have a good day, have fun, have a good one, good luck, congrats,
congratulations, happy birthday, of course, absolutely, definitely, i like it, love it,
i love it, come on, interesting, enjoy

ciao, salve, ehi, ehila, buongiorno, buon giorno, buonasera, buona sera, buonanotte,
buona notte, buon pomeriggio, buona giornata, buona serata, buon weekend, arrivederci, a dopo,
a domani, a presto, ci sentiamo, ci vediamo, grazie, grazie mille, grz, ti ringrazio,
molte grazie, tante grazie, mille grazie, grazie di tutto, grazie infinite, prego, di niente,
figurati, va bene, vabbè, vabbe, va be, d'accordo, daccordo, sì, si, no, certo, certamente,
esatto, esattamente, giusto, perfetto, ottimo, bene, benissimo, bello, bellissimo, bravo,
brava, bravissimo, fantastico, fantastica, grande, grandioso, eccellente, capito, ho capito,
chiaro, ricevuto, fatto, tutto bene, tutto ok, tutto a posto, tutto chiaro, a posto, apposto,
come va, come stai, come state, come butta, che fai, ci sei, chi sei, scusa, scusami,
mi dispiace, forse, ok grazie, non fa niente, niente, non importa, lascia stare,
lascia perdere, vai, vai avanti, continua, procedi, per favore, ti prego, davvero, sul serio,
ma dai, dai, boh, mah, beh, ah, uffa, evviva, auguri, buon lavoro, buon appetito, interessante,
mi piace, ci sta, ok va bene, perfetto così, buona idea, bel lavoro

hola, buenas, buenos días, buenas tardes, buenas noches, adiós, hasta luego, hasta mañana,
hasta pronto, nos vemos, chao, chau, gracias, muchas gracias, mil gracias, muchísimas gracias,
de nada, no hay de qué, por nada, vale, de acuerdo, sí, claro, claro que sí, por supuesto,
exacto, correcto, perfecto, genial, bien, muy bien, está bien, bueno, muy bueno, qué bueno,
qué bien, excelente, estupendo, guay, entendido, entiendo, ya veo, listo, hecho, cómo estás,
cómo está, qué tal, cómo te va, cómo va, qué haces, quién eres, estás ahí, todo bien,
lo siento, perdón, perdona, disculpa, quizás, tal vez, no importa, no pasa nada, adelante,
sigue, continúa, por favor, de verdad, en serio, venga, vamos, dale, interesante, me gusta,
buena idea, buen trabajo

salut, bonjour, bonsoir, bonne nuit, bonne journée, bonne soirée, coucou, au revoir, à bientôt,
à demain, à plus, à plus tard, à tout à l'heure, merci, merci beaucoup, merci bien,
mille mercis, un grand merci, merci à toi, merci à vous, de rien, je t'en prie,
je vous en prie, pas de problème, pas de souci, oui, ouais, ouaip, non, si, d'accord, dac,
ok d'accord, bien sûr, exact, exactement, parfait, super, génial, excellent, bien, très bien,
c'est bon, c'est bien, c'est parfait, c'est noté, bon, bravo, top, nickel, compris,
j'ai compris, je vois, entendu, noté, fait, ça va, comment ça va, comment vas-tu,
comment allez-vous, tu vas bien, quoi de neuf, tu es là, t'es là, qui es-tu, désolé, désolée,
pardon, excuse-moi, peut-être, tant pis, laisse tomber, vas-y, allez-y, allez, continue,
s'il te plaît, s'il vous plaît, stp, svp, vraiment, ah bon, sérieux, mdr, ptdr, voilà,
intéressant, j'adore, bonne idée, bon travail, avec plaisir

hallo, moin, moin moin, servus, grüß dich, grüß gott, guten morgen, guten tag, guten abend,
gute nacht, morgen, tschüss, tschüs, tschau, ade, auf wiedersehen, bis bald, bis später,
bis morgen, bis dann, danke, danke schön, dankeschön, danke sehr, danke dir, vielen dank,
vielen lieben dank, tausend dank, besten dank, herzlichen dank, merci, bitte, bitte schön,
bitte sehr, gern geschehen, gerne, gern, kein problem, keine ursache, ja, jep, jo, nein, nö,
nee, klar, na klar, alles klar, natürlich, sicher, genau, richtig, stimmt, passt, perfekt,
prima, super, toll, gut, sehr gut, schön, sehr schön, wunderbar, ausgezeichnet, in ordnung,
einverstanden, verstanden, ich verstehe, verstehe, ach so, achso, erledigt, fertig, wie geht's,
wie geht es dir, wie gehts, wie geht es ihnen, was geht, was machst du, wer bist du,
bist du da, alles gut, entschuldigung, sorry, tut mir leid, vielleicht, egal, macht nichts,
weiter, mach weiter, nur zu, los, wirklich, echt, im ernst, aha, na gut, okay gut, interessant,
gefällt mir, gute idee, gute arbeit, schönen tag, schönen tag noch, schönen abend

olá, oi, oie, e aí, bom dia, boa tarde, boa noite, tchau, adeus, até logo, até mais,
até amanhã, até breve, falou, valeu, obrigado, obrigada, muito obrigado, muito obrigada,
brigado, brigada, obg, vlw, de nada, por nada, imagina, tá, tá bom, tá bem, está bem, está bom,
beleza, blz, sim, não, claro, com certeza, certo, exato, isso, isso mesmo, perfeito, ótimo,
bom, muito bom, muito bem, bem, legal, maravilha, excelente, show, massa, entendi, entendido,
percebi, feito, pronto, tudo bem, tudo bom, tudo certo, como vai, como está, como estás,
como você está, quem é você, você está aí, desculpa, desculpe, talvez, deixa pra lá,
não importa, pode ser, vai, continua, continue, por favor, sério, mesmo, é verdade,
interessante, gostei, boa ideia, bom trabalho, fixe

hoi, goedemorgen, goedemiddag, goedenavond, welterusten, goedendag, doei, dag, tot ziens,
tot later, tot straks, tot morgen, dank je, dank je wel, dankjewel, dank u, dank u wel,
bedankt, hartelijk dank, graag gedaan, geen probleem, alsjeblieft, nee, prima, goed, heel goed,
mooi, leuk, begrepen, duidelijk, hoe gaat het, hoe gaat het met je, alles goed, misschien,
klopt, natuurlijk, lekker, ga door, oké

cześć, hej, siema, dzień dobry, dobry wieczór, dobranoc, do widzenia, na razie, pa, do jutra,
dzięki, dziękuję, dziękuję bardzo, dziękuję ci, wielkie dzięki, proszę, nie ma za co, tak, nie,
dobrze, dobra, jasne, okej, spoko, super, świetnie, rozumiem, zrozumiałem, jak się masz,
co słychać, przepraszam, może

привет, здравствуй, здравствуйте, доброе утро, добрый день, добрый вечер, спокойной ночи, пока,
до свидания, до завтра, увидимся, спасибо, большое спасибо, спасибо большое, спс, благодарю,
пожалуйста, не за что, да, нет, ага, угу, ок, окей, хорошо, ладно, понятно, понял, поняла,
ясно, отлично, супер, круто, класс, здорово, точно, конечно, как дела, как ты, как жизнь,
что делаешь, извини, извините, может быть, продолжай, давай

你好, 您好, 大家好, 嗨, 哈喽, 早, 早安, 早上好, 下午好, 晚上好, 晚安, 再见, 拜拜, 明天见, 谢谢,
谢谢你, 谢谢您, 謝謝, 謝謝你, 多谢, 感谢, 不客气, 不用谢, 没关系, 没事, 好, 好的, 好吧, 好啊,
好滴, 行, 可以, 是, 是的, 对, 对的, 嗯, 嗯嗯, 哦, 噢, 啊, 呢, 吧, 了, 不, 不是, 不用, 没有,
知道了, 明白, 明白了, 懂了, 收到, 了解, 没问题, 太好了, 太棒了, 很好, 不错, 厉害, 棒, 赞,
你好吗, 最近怎么样, 在吗, 你是谁, 吃了吗, 哈, 呵, 嘿, 嘻, 真的吗, 加油, 辛苦了, 对不起, 抱歉,
继续, 请继续

こんにちは, こんばんは, おはよう, おはようございます, おやすみ, おやすみなさい, さようなら,
さよなら, じゃあね, じゃね, またね, またあした, また明日, バイバイ, どうも, ありがとう,
ありがとうございます, ありがとうございました, どうもありがとう, 有難う, サンキュー,
どういたしまして, はい, うん, ううん, いいえ, いや, ええ, そう, そうです, そうですね, なるほど,
了解, 了解です, 了解しました, りょうかい, わかった, わかりました, 分かりました, 分かった,
オッケー, おっけー, いいね, いいですね, いいよ, 大丈夫, 大丈夫です, すごい, 素晴らしい,
すばらしい, 完璧, 最高, 元気, 元気ですか, お元気ですか, ごめん, ごめんなさい, すみません,
お願いします, よろしく, よろしくお願いします, お疲れ様, お疲れ様です, お疲れ様でした, もしもし,
ね, よ, です, 続けて, 続けてください, 草, 笑, やあ

안녕, 안녕하세요, 안녕히 가세요, 안녕히 계세요, 잘 자, 잘 자요, 잘자, 좋은 아침, 고마워,
고마워요, 고맙습니다, 감사, 감사해요, 감사합니다, 정말 감사합니다, 천만에요, 네, 넵, 예, 응,
아니, 아니요, 그래, 그래요, 좋아, 좋아요, 알겠어, 알겠어요, 알겠습니다, 알았어, 오케이, 맞아,
맞아요, 괜찮아, 괜찮아요, 대박, 최고, 잘 지내, 잘 지내요, 뭐해, 미안, 미안해, 죄송합니다, 계속,
계속해, ㅋ, ㅎ, ㅇㅋ, ㅇㅇ, 수고하세요, 화이팅

สวัสดี, สวัสดีครับ, สวัสดีค่ะ, หวัดดี, ดีครับ, ดีค่ะ, ขอบคุณ, ขอบคุณครับ, ขอบคุณค่ะ, ขอบคุณมาก,
ขอบใจ, ขอบใจนะ, ครับ, ค่ะ, คะ, จ้า, จ้ะ, นะ, มาก, มากๆ, ใช่, ไม่, ไม่ใช่, ได้, ได้เลย, โอเค,
ตกลง, เข้าใจแล้ว, รับทราบ, ดี, ดีมาก, เยี่ยม, สุดยอด, ไม่เป็นไร, ขอโทษ, ลาก่อน, บาย, ฝันดี,
ราตรีสวัสดิ์, สบายดีไหม, เป็นไงบ้าง, สบายดี, ยินดี

مرحبا, أهلا, السلام عليكم, صباح الخير, مساء الخير, شكرا, شكرا جزيلا, شكرا لك, عفوا, نعم, لا,
حسنا, تمام, ممتاز, جيد, مع السلامة, كيف حالك, فهمت, طيب, أيوه, إن شاء الله

नमस्ते, नमस्कार, धन्यवाद, शुक्रिया, हाँ, हां, जी, जी हाँ, नहीं, ठीक, ठीक है, अच्छा, बहुत अच्छा,
समझ गया, समझ गई, कैसे हो, आप कैसे हैं, अलविदा, शुभ रात्रि, सुप्रभात
"""

#: Words that go along with casual ones and say nothing by themselves.
FILLERS = """
a, and, but, so, then, very, much, lot, too, again, now, it, that, this, you, u, i, me, my,
for, to, the, is, all, really, just, everyone, everybody, guys, folks, friend, mate, buddy,
bro, man, dude, dear, sir, team, bot, hermes, assistant, today, here, there, help, your, with,
of

e, ed, ma, poi, allora, molto, tanto, tanta, più, ancora, te, tu, a te, a tutti, tutti, tutto,
così, per, aiuto, l'aiuto, dell'aiuto, il, la, lo, è, oggi, amico, ragazzi, caro, cara, mille,
davvero, proprio, anche, quindi, ora

y, pero, entonces, muy, mucho, otra, vez, todos, todo, por, tu, ayuda, la, amigo, chicos, hoy,
así

et, mais, alors, très, beaucoup, encore, tous, tout, le, monde, pour, toi, vous, ton, aide,
l'aide, mon, ami, aujourd'hui, c'est, est

und, aber, dann, sehr, viel, noch, auch, alle, alles, für, deine, die, hilfe, dir, dich, mein,
freund, leute, heute, zusammen, mal, es, ist, das, so

mas, então, muito, também, ainda, todos, tudo, pela, ajuda, sua, amigo, gente, pessoal, hoje,
meu, o, da, demais

en, maar, dan, heel, erg, voor, je, hulp, allemaal, i, bardzo, за, помощь, очень, всем, тебе,
и, а, ну, 너무, 정말, 진짜
"""

#: Beginnings of words that point at knowledge: memory, decisions, architecture, and so on.
CUE_STEMS = """
decid, decis, architect, config, debug, troubleshoot, project, remember, recall, remind,
previous, earlier, refactor, roadmap, strateg, error, regression

architett, progett, ricord, precedent, impostazion, proget, arquitect, proyect, recuerd,
recordar, recordas, depur, anterior, estrateg, projet, rappel, souvien, souven, précéd, débog,
paramètr, réglage, erreur, décid, décis, entscheid, entschied, entschlo, beschlo, beschlu,
architekt, konfig, projekt, erinner, vorher, vorig, fehler, einstellung, arquitet, lembr,
falha, beslis, beslot, besloten, besluit, herinner, vorige, instelling, decyzj, zdecyd, pamięt,
przypomn, błęd, ustawie, решил, решен, архитект, конфиг, проект, помни, напомн, вспомн, прошл,
ошибк, отлад, настрой
"""

#: The same as whole words.
CUE_WORDS = """
bug, bugs, crash, crashes, crashed, exception, traceback, stacktrace, yesterday, rationale,
tradeoff, design, setup, settings, ieri, guasto, scelta, ayer, fallo, fallos, ajustes, diseño,
hier, panne, bogue, conception, gestern, damals, neulich, zuletzt, absturz, ontem, erro, erros,
ajuste, gisteren, fout, fouten, wczoraj, błąd, вчера, баг, раньше
"""

#: The same as several words.
CUE_PHRASES = """
last time, last week, last month, the other day, as before, like before, what we said, we said,
we discussed, we talked, we agreed, we chose, we used, we did, we had, you said, you told me,
i told you, i said, why did we, how did we, when did we, what did we, where did we, why do we,
how do we, did we, have we, do we, trade off, stack trace

l'altra volta, ultima volta, l'ultima volta, scorsa volta, volta scorsa, settimana scorsa,
come prima, detto prima, di prima, perché abbiamo, come abbiamo, cosa abbiamo, quando abbiamo,
abbiamo detto, abbiamo scelto, abbiamo fatto, abbiamo parlato, abbiamo usato, avevamo,
mi hai detto, ti avevo detto, ti ho detto

última vez, la otra vez, vez pasada, semana pasada, como antes, por qué hicimos, cómo hicimos,
por qué elegimos, qué hicimos, dijimos, hablamos, acordamos, elegimos, usamos, me dijiste,
te dije

dernière fois, l'autre jour, la fois d'avant, semaine dernière, comme avant,
pourquoi avons nous, comment avons nous, pourquoi on a, comment on a, on avait, on a dit,
on a choisi, nous avons, nous avions, tu m'as dit, je t'ai dit

letztes mal, letzte woche, letzten monat, beim letzten mal, wie zuvor, warum haben wir,
wie haben wir, was haben wir, wann haben wir, haben wir, hatten wir, wir haben, wir hatten,
du hast gesagt

da última vez, última vez, outro dia, semana passada, como antes, por que fizemos,
como fizemos, por que escolhemos, combinamos, falamos, escolhemos, dissemos, você disse,
eu disse

vorige keer, laatste keer, waarom hebben we, hoe hebben we, we hebben, ostatnim razem,
poprzednio, почему мы, как мы, в прошлый раз, мы обсуждали, мы говорили
"""

#: The same in scripts without spaces, or with endings and prefixes: looked for anywhere.
CUE_PIECES = """
决定, 決定, 架构, 架構, 配置, 设置, 設定, 项目, 項目, 專案, 调试, 調試, 除錯, 错误, 錯誤, 报错,
之前, 上次, 昨天, 记得, 記得, 讨论过, 討論過, 方案, 设计, 設計, 故障, 決め, アーキテクチャ,
構成, プロジェクト, デバッグ, エラー, バグ, 前回, 以前, 昨日, さっき, 覚え, 思い出, 先週,
不具合, 결정, 아키텍처, 설계, 설정, 구성, 프로젝트, 디버그, 디버깅, 오류, 에러, 버그, 지난번,
이전에, 어제, 기억, ตัดสินใจ, สถาปัตยกรรม, ตั้งค่า, โครงการ, โปรเจกต์, โปรเจค, ดีบัก,
ข้อผิดพลาด, ครั้งที่แล้ว, คราวก่อน, ก่อนหน้า, เมื่อวาน, จำได้, قرار, قررنا, مشروع, إعداد, خطأ,
معمارية, تتذكر, أمس, سابق, निर्णय, परियोजना, प्रोजेक्ट, त्रुटि, याद, पिछली, कल
"""

#: Question words that ask wherever they stand among the first words of a message.
QUESTION_WORDS = """
why, how, what, what's, when, where, which, whose, perché, cosa, cos'è, quale, quali, quando,
quanto, quanti, quante, dov'è, com'è, chi, qué, cómo, cuándo, dónde, cuál, cuáles, cuánto,
cuántos, quién, por qué, pourquoi, comment, quand, quel, quelle, quels, quelles, combien,
qu'est, est-ce que, warum, wieso, weshalb, wie, wann, welche, welcher, welches, wieviel, wozu,
porquê, qual, quais, onde, quem, quantos, quantas, waarom, hoe, wanneer, welke, dlaczego, jak,
kiedy, gdzie, который, почему, зачем, когда, где, кто, сколько, какой, какая, какие, 왜,
어떻게, 언제, 어디, 누가, 무엇, 뭐, لماذا, كيف, متى, ماذا, أين, هل, क्यों, कैसे, क्या, कब,
कहाँ
"""

#: Question words that mean something else elsewhere: they ask as the first word only.
FIRST_QUESTION_WORDS = """
who, whom, come, dove, como, où, qui, que, quoi, was, wer, wo, wem, porque, quien, donde, cual,
cuando, wat, wie, waar, co, kto, как, что, is there, are there, should we, could we, can we,
was there
"""

#: Questions in scripts without spaces: looked for anywhere.
QUESTION_PIECES = """
为什么, 為什麼, 怎么, 怎麼, 什么, 什麼, 哪里, 哪个, 哪些, 谁, 几个, 多少, 吗, 嗎, 如何, 是否,
何时, なぜ, どうして, どうやって, どう, 何, いつ, どこ, だれ, 誰, どれ, ですか, ますか,
でしたか, ましたか, ทำไม, อย่างไร, ยังไง, อะไร, เมื่อไหร่, ที่ไหน, ใคร, ไหม, หรือเปล่า
"""
